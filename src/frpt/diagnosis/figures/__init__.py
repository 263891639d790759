"""The figures of a diagnosis: ``plots`` of one network, ``curves`` of several runs, both on a ``canvas``."""
