"""Texts to tokens, by the tokenizer libraries that people have: `tokenizers`, tiktoken and sentencepiece."""

from headrace.text.tokenize import Tokenize as Tokenize
