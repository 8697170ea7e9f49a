"""Proves that a job trains on N ranks as it trains on one, or finds why it does not."""
