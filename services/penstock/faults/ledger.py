"""Queries of the ledger of a world, for the checks of charges."""

LEDGER_QUERY = """
    SELECT reservation_id, request_id, reserved_prompt_tokens, reserved_output_tokens, prompt_tokens, output_tokens,
           outcome, answer_id FROM ledger WHERE tenant_id = ? ORDER BY settled_at, reservation_id
"""
TOTALS_QUERY = "SELECT SUM(prompt_tokens), SUM(output_tokens), SUM(requests) FROM balances WHERE tenant_id = ?"
