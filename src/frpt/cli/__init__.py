"""The `frpt` command, a thin skin over the API."""
