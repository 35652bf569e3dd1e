"""JWTs of OpenID providers: issuers as configured, their key sets, the verification of tokens, and the refresh of keys.

Imported only by processes with configured issuers, because it needs PyJWT and its cryptography.
"""
