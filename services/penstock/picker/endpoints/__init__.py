"""The endpoints: their list, their load as scraped from their metrics, and their capacity."""
