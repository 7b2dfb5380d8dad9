"""The coordinator: registry, placement, tasks; the API in `queen.api` lives with it."""
