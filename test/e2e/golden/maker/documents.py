"""The text that the golden runs train on: documents from two bytes to several sequences long."""

DOCUMENTS = [
    "A recipe says what to train; a plan says which bytes move when.",
    "The mill by the river ground wheat in summer and rye in autumn. Each sack was weighed "
    "twice, once by the farmer and once by the miller, and the two numbers were written side "
    "by side in a long book. When they differed, the sack was weighed a third time, and nobody "
    "left before they agreed.",
    "no",
    "Four ships left the harbour at dawn. The first carried salt, the second carried rope, the "
    "third carried letters, and the fourth carried nothing at all, because it was going to "
    "fetch what the others had left.",
    "x = 3\ny = x * x\nprint(x + y)\n",
    "Grüße aus der Mühle: äöü, ça va, naïve, 数, →.",
    "Rain, rain, rain. Then sun. Then rain again.",
    "To bake a plain bread, take five hundred grams of flour, three hundred of water, ten of "
    "salt and a spoon of old dough. Mix, wait, fold, wait, fold, wait. Heat the oven until a "
    "pinch of flour turns brown on its floor. The loaf is done when it sounds hollow.",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "ok",
    "The clock in the tower was four minutes slow. Everybody knew, and everybody added four "
    "minutes; so when it was repaired one night, the whole town was late for a week.",
    "if a < b { a } else { b }",
    "A shard is a part of a whole that knows its place. Gather the shards in order and the "
    "whole is there again; lose one and nothing is.",
    "Seven geese crossed the road. Six geese crossed the road. Five geese crossed the road. "
    "Four geese crossed the road. Three geese crossed the road. Two geese crossed the road. "
    "One goose crossed the road.",
    "the the the the the the the the",
    "A map of the island fits on a coin; a map of the coin fits on the island.",
    "She counted the steps to the lighthouse: two hundred and twelve going up, two hundred and "
    "eleven coming down. She never found out which of them was missing.",
    "abcdefghijklmnopqrstuvwxyz",
    "Q: How long is a coast? A: How long is your ruler?",
    "Two hills stand above the village. The northern one has a chapel, the southern one has a "
    "quarry, and every stone of the chapel has come from the quarry on the same narrow cart, "
    "pulled by a different mule.",
    "0.5 0.25 0.125 0.0625",
    "Winter came early. The lake froze in a night, and in the morning there were footprints on "
    "it already, going out to the middle and not coming back. They were a heron's.",
    "An apple, a pear, a plum, a peach, a quince, a fig.",
    "end",
    # Many ends of documents close together, so that microbatches differ in token counts.
    *"a I do go by to we be me up or so an in at on it of is he my us if as am".split(),
    *"ash oak elm yew fir bay box ivy fig tea rye oat hop pea nut bud sap rib pod hay".split(),
]
