"""Text to token ids and back: chat template, tokenizer, detokenizer and stop strings of one model.

All state can be rebuilt from the token ids, so that another attempt or another edge continues an answer in the middle
of a sentence.
"""
