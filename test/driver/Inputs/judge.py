"""Calls the adapter of the evaluation harness as the harness does.

    judge.py EXAMPLES MODEL
"""

import sys
import types

sys.path.insert(0, sys.argv[1])
import lm_eval_shardc


def requests(*arguments):
    return [types.SimpleNamespace(args=each) for each in arguments]


def sign(number):
    return "below 0" if number < 0 else "not below 0"


model = lm_eval_shardc.Shardc(sys.argv[2], max_gen_toks=2, batch_size=1, device="cpu", backend="host")
print([(str(is_likeliest), sign(number)) for number, is_likeliest in model.loglikelihood(requests(("abab", "ab"), ("abab", "ba")))])
print([sign(number) for number in model.loglikelihood_rolling(requests(("abab",)))])
print(model.generate_until(requests(("abab", {"until": ["ba"], "max_gen_toks": 4}), ("aba", {"until": "aa", "max_gen_toks": 3, "do_sample": False}),
                                    ("abab", {"until": []}))))
for call in (lambda: model.generate_until(requests(("abab", {"num_beams": 3}))), lambda: lm_eval_shardc.Shardc("x", colour="red"),
             lambda: model.loglikelihood(requests(("", None)))):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        print(str(error).partition(":")[0])
