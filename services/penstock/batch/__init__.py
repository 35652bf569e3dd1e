"""The tier `batch`: files of requests that run for hours, each line answered and charged once."""
