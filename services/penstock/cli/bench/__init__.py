"""`penstock bench`: offers a load, keeps each request's history, and reports what its callers saw.

The load and the report are pure; the APIs are four ways to send the same request. Nothing is retried: a shed is
counted.
"""
