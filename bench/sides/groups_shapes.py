"""What both sides of the bench of worker groups call, and on which rows. Needs nothing installed."""

WORKERS = 4
ROWS, TOKENS = 256, 2048
KEYS = {"tokens": "int64", "labels": "int64", "logprobs": "float32", "old_logprobs": "float32"}
CALLS, ROW_CALLS = 100, 6
"""In a round."""
