"""Reads a metrics page as Prometheus does, with the parser of prometheus_client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by (name, sorted labels)."""


def parsed(page: bytes) -> Series:
    """Every sample. Raises ValueError for what is not the format, or is there twice."""
    found: Series = {}
    text = page.decode()
    written = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if name not in written:  # the parser ends every counter on _total
                name = name.removesuffix("_total")
            key = (name, tuple(sorted(sample.labels.items())))
            if key in found:
                raise ValueError(f"twice: {key}")
            found[key] = sample.value
    return found


def total(series: Series, name: str, **labels: str) -> float:
    """The sum of all samples with this name and at least these labels."""
    wanted = labels.items()
    return sum(
        value
        for (one, found), value in series.items()
        if one == name and wanted <= dict(found).items()
    )
