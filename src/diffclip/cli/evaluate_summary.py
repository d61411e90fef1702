"""The results of a suite in one table: a row a measure, a column a model."""

from __future__ import annotations

from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.records import Record


def show_summary(ledger: Ledger) -> None:
    """Print the headline metric of each task and set, and the averages."""
    import pandas as pd

    from diffclip.report.frame import headlines, results_of
    from diffclip.report.tables import values_table

    frame = pd.DataFrame([one.model_dump() for one in ledger.records], columns=list(Record.model_fields))
    results = results_of(frame)
    print(values_table(results, headlines(results.records), "").frame.to_string(index=False))
    if ledger.path:
        print(
            f"Tables and figures: diffclip report {ledger.path} --output {ledger.path.with_suffix('.html')}"
        )
