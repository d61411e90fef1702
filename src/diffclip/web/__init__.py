"""The page of `diffclip explore`: where two models look. Needs gradio (the extra `web`)."""
