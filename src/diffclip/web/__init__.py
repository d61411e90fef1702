"""The page that shows where two models look and searches a folder. Needs gradio, the group `web`."""
