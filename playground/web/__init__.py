"""The page: what it looks like (layout, theme, static files) and what it does (events, inspection, api)."""
