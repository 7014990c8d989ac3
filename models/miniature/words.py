"""English words that the miniature's vocabulary has beside those of its chronicles."""

COMMON_WORDS = (
    "a an and are as at be but by can could do does for from had has have he hello her his how I if "
    "in into its me my not of on or our out please say she tell than thank that their them then they "
    "to up us was we were when where which who why will with would yes you your"
).split()
"""Words of other people's prompts."""

ADJECTIVES = (
    "old young small large quiet loud bright dark warm cold green blue brown white heavy light "
    "round narrow happy tired clever slow quick wild gentle proud empty"
).split()
NOUNS = (
    "river mountain house garden farmer teacher sailor horse bird cat dog tree stone road bridge "
    "town market boat window door lamp book letter song story winter summer morning evening cloud "
    "forest field village baker child king queen island harbour train"
).split()
