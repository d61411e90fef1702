"""Reports from result records and run folders: a page, Markdown, figures, and the paper's tables.

`frame` reads the records, `compare` tests, `tables`, `figures` and `paper` present, `page` writes the files.
"""
