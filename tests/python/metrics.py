"""What is exported, as a dict of names and labels, by the readers of those who export."""

from __future__ import annotations

from typing import Any

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exposed(text: str) -> Samples:
    """The samples of the text format of Prometheus."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exported(reader: Any) -> Samples:
    """The points that a reader of OpenTelemetry's SDK collects; of histograms the counts."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (metric.name, tuple(sorted(point.attributes.items()))): (
            point.value if hasattr(point, "value") else point.count
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    """The value of one; None where there is none."""
    return samples.get((name, tuple(sorted(labels.items()))))
