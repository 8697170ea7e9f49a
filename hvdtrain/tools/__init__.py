"""Tools beside training: each makes or checks one thing about this environment."""
