"""Measures what a prediction needs: links by allreduces, and training by its steps."""
