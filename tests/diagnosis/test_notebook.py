"""What a notebook shows: a few readable lines, never pages of numbers; and how the targets were made, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from frpt.diagnosis.report.verdict import about_targets
from tests.diagnosis.small import LAYERS, diagnosis, trajectory

D = diagnosis()


def test_a_diagnosis_is_a_line_and_the_table_of_layers() -> None:
    lines = repr(D).splitlines()
    assert lines[0] == "Diagnosis of SmallNet, preset default: accuracy 0.5 on 12 samples, 6 need a correction"
    assert [line.split()[0] for line in lines[3:]] == list(LAYERS)
    assert max(map(len, lines)) < 120
    assert len(str(D)) > len(repr(D))


def test_as_html_it_has_the_same_table_with_names_escaped() -> None:
    odd = replace(D, layers=tuple(replace(f, name=f"<{f.name}>") for f in D.layers))
    html = odd._repr_html_()
    assert html.count("<tr>") == 1 + len(LAYERS)
    assert "&lt;stage2&gt;" in html
    assert "<stage2>" not in html


def test_findings_show_arrays_by_their_shape() -> None:
    assert "channels=<16 float64>" in repr(D.layers[2])
    assert "'stage2': <16 float64>" in repr(D.pairs[0])
    assert "image=<24×30×3 uint8>" in repr(D.gallery[0])
    assert "deviation=<12×3 float64>" in repr(D.samples)
    for finding in (D.layers[2], D.pairs[0], D.samples, D.units[0]):
        assert len(repr(finding)) < 600
        assert "array(" not in repr(finding)


def test_a_trajectory_is_its_table() -> None:
    t = trajectory()
    assert repr(t) == str(t)
    assert t._repr_html_().count("<tr>") == 1 + len(t.checkpoints) + 2


def test_the_page_says_how_targets_were_made(tmp_path: Path) -> None:
    walked, plain = D, replace(D, units=())
    known = replace(plain, reference="512 samples")
    assert "op by op" in about_targets(walked)
    assert "least change" in about_targets(plain)
    assert "likeliest features in which the label wins" in about_targets(known)
    assert "over 512 samples" in about_targets(known)
    assert "the output asked for" in about_targets(replace(known, class_names=()))
    for d in (walked, plain, known):
        assert about_targets(d) in d.to_html(tmp_path / "r.html").read_text()
