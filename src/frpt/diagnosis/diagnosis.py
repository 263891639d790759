"""Diagnosis: the findings with what users do with them: read, plot, tabulate, write as a page.

``diagnose`` in ``survey.py`` makes it. The modules that draw and write are loaded by the methods that need them, so
that importing frpt loads neither matplotlib nor pandas nor jinja2; none of them imports this module back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frpt.diagnosis import tables
from frpt.diagnosis.findings import Findings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from frpt.diagnosis.report.runs import Run
    from frpt.repairs.fix import Fix


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Findings):
    """Where a network goes wrong: what ``frpt.diagnose`` returns. ``print`` says it in words and tables.

    Attributes:
        model: the class of the network.
        preset: how the targets were made.
        class_names: () where labels are no class ids, one for each sample.
        score_name: "accuracy", or "mse" where labels are no class ids.
        score: over all samples.
        layers: ``LayerFinding`` of each layer, output first.
        units: ``UnitFinding`` of each op on the way back, output first; () unless the preset makes targets op by op.
        ranking: names of layers, the likeliest place of the fault first; () where no sample needs a correction.
        suspects: the first of the ranking, and the layers that cannot be told from it on these samples; () if refitting
            no layer surely takes back a twentieth of the loss, or these were more than two thirds of the layers. A
            single suspect is named as the place of the fault.
        advice: ``Advice``, the layers whose targets can be trusted.
        confusion: (classes, classes), how many samples of a label (row) get a prediction (column).
        pairs: ``PairFinding`` of the most frequent confusions.
        samples: ``SampleTable``, numbers per sample.
        gallery: ``Specimen`` of the samples that move most, with response maps.
        reference: what the reference was fitted to, in words; with one, targets are the likeliest features in which the
            label wins, measured in each layer's own variation. "" without one: targets are the least change.
        normalisation: (mean, std) of the inputs, to show them as pictures; None for what was not given.
        loss: what the faults are shares of, in words.
        sample_names: index → name, of the samples that need a correction; empty where the data set has no names.
        source: where the samples are read from, so that a page can count what a repair does to them.
        recurrent: layers with recurrent weights, which the ranking cannot rule out.
        unmoved: layer → that the output cannot be moved from it, and where that is lost.
        output_names: where labels say yes or no to several outputs, one for each output; () elsewhere.
        cautions: why to mistrust it, in sentences: outputs that are probabilities and taken for scores, weights in
            bfloat16, a network that is worse than a guess.

    Example:
        >>> diagnosis
        Diagnosis of Sequential, preset default: accuracy 0.25 on 40 samples, 30 need a correction
        layer  deviation  in reference  label wins  trust  fault   95 % interval    rank
        -----  ---------  ------------  ----------  -----  ------  ---------------  ----
        out    ...
        0      ...
    """

    def to_html(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        results: Sequence[Run] = (),
        repair: Fix | None = None,
    ) -> Path:
        """Write one self-contained page, to be opened in a browser.

        Args:
            path: the file; its directory has to be there.
            title: of the page; by default the network's class.
            results: what ``frpt.compare``, ``frpt.post_train`` and ``frpt.along_training`` returned, to be shown on the
                same page.
            repair: what ``frpt.repair`` returned for the same network: the samples that it fixed and broke, of those
                it was given and of those of this diagnosis (run through both networks), the weights that moved, and
                how far features moved beside their targets.

        Returns:
            The path.

        Raises:
            OptionError: for a file that cannot be written, results of another kind, or a repair of another network.

        Example:
            >>> page = diagnosis.to_html(folder / "report.html", title="A small network")
            >>> page.stat().st_size > 50_000
            True
        """
        from frpt.diagnosis.report.page import to_html

        return to_html(self, path, title=title, results=results, repair=repair)

    def to_pandas(self, table: str = "layers") -> pd.DataFrame:
        """One of the tables as a data frame.

        Args:
            table: "layers", "units", "classes", "samples", "channels" or "pairs".

        Returns:
            The frame; classes by name and by id.

        Raises:
            OptionError: for another table.

        Example:
            >>> frame = diagnosis.to_pandas("samples")
            >>> worst = frame.sort_values("deviation/0", ascending=False)["index"]
        """
        return tables.frame(self, table)

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write all tables as CSV files.

        Args:
            folder: where to; made if it is not there.

        Returns:
            The files, one for each table.

        Raises:
            OptionError: for a directory that cannot be written to.

        Example:
            >>> [file.name for file in diagnosis.to_csv(folder / "tables")][:2]
            ['layers.csv', 'units.csv']
        """
        return tables.write_csv(self, folder)

    def plot(self, figure: str, *of: str | int, path: str | Path | None = None) -> Figure:
        """Draw a figure.

        Args:
            figure: "deviation", "classes" or "trust"; "channels" or "positions" of a layer; "responses" of a sample of
                the gallery; "pair" of a label and what it is taken for.
            *of: the layer, the sample's index, or the label and the prediction (ids or names).
            path: a file to write it to as well: .png, .svg or .pdf.

        Returns:
            The figure, which belongs to no window.

        Raises:
            OptionError: for another figure, or one of something that is not in the diagnosis.
            UnknownLayerError: for a layer that was not diagnosed.

        Example:
            >>> figure = diagnosis.plot("channels", "0", path=folder / "channels.svg")
        """
        from frpt.diagnosis.figures import plots

        return plots.draw(self, figure, *of, path=path)

    def __str__(self) -> str:
        return tables.text(self)

    def __repr__(self) -> str:
        return tables.brief(self)

    def _repr_html_(self) -> str:
        return tables.html(self)
