"""A chart as a part of an HTML page."""

from __future__ import annotations

import html

from diffclip.report.charts import Chart, Key
from diffclip.report.style import darkened, data_uri, svg_of


def chart_html(chart: Chart) -> str:
    """A chart with its legend as text and one picture a panel, light and dark."""
    legend = "".join(f"<li>{_swatch(key)}{html.escape(key.label)}</li>" for key in chart.legend)
    panels = []
    for panel in chart.panels:
        svg = svg_of(panel.figure())
        panels.append(
            f"<picture{' class=square' * (panel.height > 0.75 * panel.width)}>"
            f'<source srcset="{data_uri(darkened(svg))}" media="(prefers-color-scheme: dark)">'
            f'<img src="{data_uri(svg)}" alt="{html.escape(panel.title)}"></picture>'
        )
    above = f'<ul class="legend">{legend}</ul>' if legend else ""
    caption = html.escape(chart.caption)
    kind = f"panels{' three' * (chart.columns > 2)}{' dense' * chart.dense}"
    return (
        f'<figure class="chart">{above}<div class="{kind}">{"".join(panels)}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _swatch(key: Key) -> str:
    parts = [] if isinstance(key.line, str) else [f"{2 * part:g}" for part in key.line[1]]
    dash = f' stroke-dasharray="{" ".join(parts)}"' if parts else ""
    dot = f'<circle cx="17" cy="6" r="4.5" fill="{key.colour}"/>' if key.marker else ""
    return (
        '<svg viewBox="0 0 34 12" aria-hidden="true"><line x1="0" y1="6" x2="34" y2="6" '
        f'stroke="{key.colour}" stroke-width="3"{dash}/>{dot}</svg>'
    )
