"""Where samples come from and which rank reads which of them in which step."""
