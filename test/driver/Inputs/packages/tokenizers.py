"""Stands in for PyPI's package `tokenizers` where it is not installed: the part of its interface that shardc uses.

A tokenizer.json for it has {"words": {word: id}, "begin": [ids before a text]}; a word that is not there becomes the token "?", and blanks none. Text of
tokens has a blank between words.
SHARDC_TEST_PACKAGE says how it misbehaves.
"""

import json
import os
import re
import signal
import time

__version__ = "0.0-test"
BEHAVIOUR = os.environ.get("SHARDC_TEST_PACKAGE", "")
if BEHAVIOUR == "missing":
    raise ImportError("No module named 'tokenizers'")
print("a line that a library prints")  # must not come between answers


class Encoding:
    def __init__(self, ids, offsets=()):
        self.ids = ids
        self.offsets = offsets


class Tokenizer:
    def __init__(self, words, begin=()):
        self.words, self.begin = words, list(begin)

    @classmethod
    def from_file(cls, path):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
            return cls(content["words"], content.get("begin", []))

    def no_truncation(self):
        pass

    def no_padding(self):
        pass

    def get_vocab(self, with_added_tokens):
        return self.words

    def encode(self, text, add_special_tokens):
        words = list(re.finditer(r"\S+", text))
        begin = self.begin if add_special_tokens else []
        return Encoding(begin + [self.words.get(word[0], self.words["?"]) for word in words], [word.span() for word in words])

    def decode_batch(self, lists, skip_special_tokens):
        if BEHAVIOUR == "textless":
            raise ValueError("tokens without a text")
        names = {number: word for word, number in self.words.items()}
        return [" ".join(names[number] for number in numbers) for numbers in lists]

    def get_added_tokens_decoder(self):
        return {}

    def token_to_id(self, token):
        return self.words.get(token)

    def encode_batch(self, texts, add_special_tokens):
        if BEHAVIOUR == "slow":
            time.sleep(0.2)
        while BEHAVIOUR == "endless":
            pass
        if "die" in " ".join(texts):
            os.kill(os.getpid(), signal.SIGSEGV)
        if "raise" in " ".join(texts):
            raise ValueError("a text that no tokenizer takes")
        if "far" in " ".join(texts):
            return [Encoding([1000]) for _ in texts]
        return [Encoding([self.words.get(word, self.words["?"]) for word in text.split()]) for text in texts]
