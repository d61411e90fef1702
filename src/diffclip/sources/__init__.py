"""Models by name: our own folders and files, the hub, and the models of other libraries."""
