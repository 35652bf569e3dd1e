"""Text on its way to token ids and back: template, tokenizer, detokenizer, stop strings.

Owns what a model's card says about text. Knows no clock, no network and no request but the one it is handed; all state
here can be made again from the ids, which is what lets another attempt or another edge go on in mid-sentence.
"""
