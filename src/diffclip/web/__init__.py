"""The page of `diffclip explore`: where two models look, and a search of a folder. Needs gradio (the extra `web`)."""
