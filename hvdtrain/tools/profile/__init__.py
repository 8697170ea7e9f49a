"""Profiles a job: where each rank's time goes in a step."""
