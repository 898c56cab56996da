"""The parts of a prompted model's answer from a JSON value, a table or tags, and what the parts are called."""

import re
from collections.abc import Mapping, Sequence

from ..llms.json_answers import find_values
from ..llms.markup_answers import find_tables, find_tags
from ..llms.prose import unquoted

_ORDINALS = ("one|first|1st", "two|second|2nd", "three|third|3rd", "four|fourth|4th", "five|fifth|5th")
LETTERS = "abcdefghij"
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
PART_NAME = (
    r"(?:(?:search|refined|targeted|rewritten|alternative|alternate|sub)[ _-]?)*"
    r"(?:query|question|version|paraphrase|rewrite|variation|q|suchanfrage|anfrage|requête|consulta|查询|查詢|запрос|クエリ)"
)
_TEXT_KEY = rf"{PART_NAME}(?: text)?|(?:search )?(?:text|content|string|value)|wording"
"""The key of an object, or the head of a table's column, that contains a query."""
_OTHER_LIST = re.compile("option|choice|candidat|feature|evidence|reason|finding|symptom", re.IGNORECASE)
"""The key of a list that is none of queries."""
NAMES_QUERIES = re.compile(
    r"quer|question|version|search|paraphras|rewrit|rephras|reformul|variation|anfrage|frage|requête|consulta|pregunta|"
    r"domand|pergunta|查询|查詢|问题|版本|запрос|вопрос|クエリ|質問|질문|쿼리",
    re.IGNORECASE,
)


def parts_in_values(text: str, cores: Sequence[str]) -> list[str]:
    """The parts from an object with a key for each, or a list of as many texts; [] where there is none, or two.

    `cores` are those of `names_of_parts`.
    """
    any_part = re.compile(rf"(?:{_TEXT_KEY})[ _-]*\d*", re.IGNORECASE)
    tags = find_tags(text, lambda name: any_part.fullmatch(name) is not None or is_name(name, cores))
    values: list[object] = [*find_values(text), *find_tables(text), *tags]
    found: list[list[str]] = []
    for value in values if len(values) < 2 else (*values, values):
        texts = [unquoted(text) for text in _texts_of(value, cores)]
        if len(texts) == len(cores) and texts not in found:
            found.append(texts)
    return found[0] if len(found) == 1 else []


def _texts_of(value: object, cores: Sequence[str]) -> list[str]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
    if isinstance(value, list):
        inner = [_query_in(item, cores) if isinstance(item, dict) else item for item in value]
        texts = [" ".join(item.split()) for item in inner if isinstance(item, str)]
        if len(texts) != len(inner):
            return []
        numbers = [_number_in(item, cores) if isinstance(item, dict) else None for item in value]
        known = sorted(number for number in numbers if number is not None)
        ordered = known == list(range(len(texts)))
        return [texts[numbers.index(number)] for number in known] if ordered else texts
    if not isinstance(value, dict):
        return []
    by_part = {
        index: text
        for key, item in value.items()
        for index, core in enumerate(cores)
        if isinstance(text := _query_in(item, cores) if isinstance(item, dict) else item, str)
        and re.fullmatch(core, re.sub(r"[_-]", " ", str(key)), re.IGNORECASE)
    }
    if len(by_part) == len(cores) == len(value):
        return [" ".join(by_part[index].split()) for index in range(len(cores))]
    sole = len(value) == 1 and not _OTHER_LIST.search(str(next(iter(value))))
    inner = [item for key, item in value.items() if sole or NAMES_QUERIES.search(str(key))]
    return _texts_of(inner[0], cores) if len(inner) == 1 else []


def _query_in(item: Mapping[str, object], cores: Sequence[str]) -> object:
    """The query of an object that has it alone, or beside its number, label, purpose and the like."""
    texts = {key: value for key, value in item.items() if not is_name(str(value), cores)}
    named = [value for key, value in texts.items() if re.fullmatch(_TEXT_KEY, str(key), re.IGNORECASE)]
    labelled = any(is_name(str(value), cores) and not str(value).isdigit() for value in item.values())
    if len(named) != 1 and len(texts) == 1 and (labelled or len(item) == 1):
        named = list(texts.values())
    return named[0] if len(named) == 1 else None


def _number_in(item: Mapping[str, object], cores: Sequence[str]) -> int | None:
    """The position of the part that an object names, such as {"id": 2, …}."""
    for value in map(str, item.values()):
        for index, core in enumerate(cores):
            if value == str(index + 1) or re.fullmatch(core, value, re.IGNORECASE):
                return index
    return None


def is_name(text: str, cores: Sequence[str]) -> bool:
    """Whether a text only names a part."""
    return text.isdigit() or any(re.fullmatch(core, text.rstrip(".: ").replace("_", " "), re.I) for core in cores)


def names_of_parts(labels: Sequence[str], roles: Sequence[str]) -> list[str]:
    """A regular expression of what may stand for each label."""
    cores = []
    for index, label in enumerate(labels):
        numbered = re.fullmatch(r"\D*?(\d+)", label)
        words = r"[ _]?".join(map(re.escape, re.split("[ _]", label)))
        ways = [words]
        if numbered:
            position = int(numbered[1]) - 1  # other labels may precede the numbered ones
            number = rf"(?:{numbered[1]}|{_ORDINALS[position]})" if 0 <= position < len(_ORDINALS) else numbered[1]
            roman = ROMAN[position] if 0 <= position < len(ROMAN) else number
            ways += [
                rf"{PART_NAME}(?:[ _\t#.°№-]*{number}(?!\d)|[ _\t]+(?:{roman}|{LETTERS[position % 10]})\b)",
                rf"(?:the )?{number}(?!\d) {PART_NAME}",
            ]
        if roles:
            ways += [
                rf"(?:the )?(?:{roles[index]})(?:[ -]?(?:query|question|hypothesis))?",
                rf"query for (?:{roles[index]})",
            ]
        cores.append(f"(?:{'|'.join(ways)})")
    return cores
