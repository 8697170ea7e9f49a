"""Reports of runs, profiles and advice: one HTML page with pictures, terminal tables, JSON."""
