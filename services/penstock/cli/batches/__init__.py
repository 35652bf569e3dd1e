"""`penstock batch`: files of requests that the batch tier of a mesh runs."""
