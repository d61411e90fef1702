"""All figures and all tables of a report, and their files."""

from __future__ import annotations

from pathlib import Path

from diffclip.files import write_text
from diffclip.report.bars import metric_chart
from diffclip.report.charts import Chart, save_chart
from diffclip.report.correlations import correlation_chart
from diffclip.report.course import course_chart
from diffclip.report.curves import training_chart, validation_chart
from diffclip.report.focus_charts import focus_charts
from diffclip.report.lambdas import lambda_chart, lambda_training_chart
from diffclip.report.latex import sheet_latex
from diffclip.report.out_of_domain import out_of_domain_chart
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.pope_sheet import pope_sheets
from diffclip.report.radar import radar_chart
from diffclip.report.series import Collection
from diffclip.report.sheet import sheet_markdown
from diffclip.report.six_tasks import is_broad, six_tasks_chart
from diffclip.report.study_data import StudyData
from diffclip.report.study_section import study_charts


def result_charts(collection: Collection) -> list[Chart]:
    """The figures of results that there is data for; six tasks stand in for many sets."""
    first = six_tasks_chart(collection) if is_broad(collection) else metric_chart(collection)
    charts = [first, out_of_domain_chart(collection), radar_chart(collection)]
    return [chart for chart in charts if chart is not None]


def training_charts(collection: Collection) -> list[Chart]:
    """The figures of training that there is data for, but those of λ."""
    charts: list[Chart | None] = [course_chart(collection)]
    if collection.runs:
        charts += [training_chart(collection), validation_chart(collection)]
    return [chart for chart in charts if chart is not None]


def lambda_charts(collection: Collection) -> list[Chart]:
    """The figures of λ, and of how alike the maps are that it weighs, that there is data for."""
    charts = (lambda_chart(collection), lambda_training_chart(collection), correlation_chart(collection))
    return [chart for chart in charts if chart is not None]


def all_charts(collection: Collection, study: StudyData | None = None) -> list[Chart]:
    """Every figure that there is data for, in the order of a report; those of a study first."""
    return [
        *(study_charts(study) if study else []),
        *result_charts(collection),
        *(chart for own in focus_charts(collection).values() for chart in own),
        *training_charts(collection),
        *lambda_charts(collection),
    ]


def write_figures(folder: str | Path, collection: Collection, study: StudyData | None = None) -> list[Path]:
    """Write every figure as `NAME.png` and `NAME.svg` into `folder`.

    Raises:
        InputError: the folder cannot be written.
    """
    return [path for chart in all_charts(collection, study) for path in save_chart(chart, Path(folder))]


def write_tables(folder: str | Path, collection: Collection, paper: bool = False) -> list[Path]:
    """Write every table laid out as the paper's as `NAME.md` and `NAME.tex` into `folder`.

    Raises:
        InputError: the folder cannot be written.
    """
    written = []
    for sheet in [*paper_sheets(collection, paper), *pope_sheets(collection, paper)]:
        for suffix, text in ((".md", sheet_markdown(sheet)), (".tex", sheet_latex(sheet))):
            path = Path(folder, sheet.name + suffix)
            write_text(path, text)
            written.append(path)
    return written
