"""Reports from result records and run folders: a page, Markdown, figures, and the paper's tables.

`frame` reads the records, `compare` puts verdicts into words, `tables`, `figures` and `printed` present, `page` writes
the files.
"""
