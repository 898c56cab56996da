"""Which option of a multiple-choice or yes-no question does an answer name?

Statements are looked for from the surest to the least sure: a JSON field; a boxed, tagged or final answer; "the answer
is …"; "option B is correct", "I choose B"; a letter alone, first or on the last line; the words of an option. Where
thoughts come to several answers in turn, the last one counts. An answer that names two options, only considers one
("could be B", "if …, the answer is B"), rejects one, or ends before it names one, names none: that counts as wrong and
is never guessed at.
"""

import re
import string
import unicodedata
from collections.abc import Sequence

from ...llms.json_answers import find_values
from ...llms.prose import is_remark, without_end_of_turn
from .metrics import normalise

_LETTER = r"[(\[{<\"'“‘]{0,4}(?P<letter>[A-Za-z])(?P<close>[)\]}>\"'”’]{0,4})(?![A-Za-z0-9_'’])"
_KIND = (
    r"(?:(?:the |an? )?(?:answer )?"
    r"(?:option|choice|letter|statement|alternative|opción|opzione|opção|вариант|选项)[ \t]*[:#]?[ \t]*)?"
)
_ADVERB = (
    r"(?:(?:therefore|thus|hence|clearly|definitely|indeed|simply|obviously|then|probably|most (?:likely|probably|"
    r"appropriate(?:ly)?)|likely|still|in fact|actually)[,:]?[ \t]+)*"
)
_NOUN = (
    r"(?:answer|\bans\b\.?|choice|option|response|selection|pick|conclusion|solution|guess|antwort|lösung|réponse|respuesta|"
    r"risposta|resposta|ответ|答案|回答|答え|正解|正确选项|정답|답)"
    r"(?:[ \t]+(?:choice|option|letter|key|correcta|correcte))?"
    r"(?:[ \t]+(?:to|for|among|of|here|based|given|in|from|at)\b[^.:\n]{0,80}?)?"
)
_VERB = (
    r"[ \t]*(?:[ \t](?:is|was|would be|should be|must be|has to be|will be|remains|ist|est|es|è|é|lautet)\b"
    r"(?:[ \t]*[:：=])?|为|為|是|は|が|은|는|[:：=]|->|→|⇒|-|(?=\n))[ \t\n]*"
)
_IS_ANSWER = re.compile(rf"(?P<final>\bfinal[ \t]+)?{_NOUN}{_VERB}{_ADVERB}{_KIND}{_LETTER}", re.IGNORECASE)
_IS_TEXT = re.compile(rf"{_NOUN}{_VERB}{_ADVERB}{_KIND}(?P<text>[^\n]+)", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed[ \t]*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_TAGGED = re.compile(
    r"<(?:final[_ ]?)?(?:answer|choice|option)>(.*?)</(?:final[_ ]?)?(?:answer|choice|option)>|\[\[(.{1,80}?)\]\]"
    r"|^[ \t]*####[ \t]+(\S.*)$",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_FIELD = re.compile(
    r"(?:(?:final|selected|correct|your)[_ ]?)?(?:answer|choice|option|letter)(?:[_ ]?(?:choice|letter|option))?",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"[\"']?(?:answer_?choice|final_?answer|selected_?answer|correct_?(?:answer|option)|answer_?letter|answer|choice)"
    rf"[\"']?[ \t]*[:=][ \t]*{_KIND}{_LETTER}",
    re.IGNORECASE,
)
_WORDS_OF_OPTION = r"(?:[ \t]*\([^()\n]*\)|[.:)][ \t]+[^.\n]{1,60}?)??"
_IS_CORRECT = (
    r",?[ \t]+(?:is|seems|appears|must be|would be|is therefore|is thus|is clearly|remains)[ \t]+(?:to be[ \t]+)?"
    r"(?:clearly |definitely |most likely |probably |indeed |therefore |also )?(?:the )?"
    r"(?:only |single |most |best |one |better )?"
    r"(?:correct|right|best|true|appropriate|accurate|answer|better|likely|suitable|choice|option)\b"
)
_CORRECT = re.compile(
    r"(?P<kind>\b(?:option|choice|answer|statement|alternative)[ \t]+|(?<![\w'’]))"
    rf"{_LETTER}{_WORDS_OF_OPTION}{_IS_CORRECT}",
    re.IGNORECASE,
)
_BEFORE_LETTER = re.compile(
    r"(?:\A|[^\w\s(\[\"']|\n|\b(?:so|therefore|thus|hence|that|think|believe|but|only|and|or|while|whereas|then|here|"
    r"since|because|as))[ \t]*[(\[\"']*\Z",
    re.IGNORECASE,
)
"""What may stand before a letter that is an option and no part of a name ("type A")."""
_CHOOSE = re.compile(
    r"(?:\bi(?:['’]ll|['’]d|\s+will|\s+would|\s+am going to|['’]m going to)?[ \t]+"
    r"(?:therefore |thus |then |have to |must )?|\blet me |\bwe )"
    r"(?:choose|chose|select|pick|go with|going with|opt for|vote for|settle on|say|answer(?: with)?)[ \t:]+"
    rf"{_KIND}{_LETTER}"
    rf"|(?:我选择|我选|应选|选择|故选|选|選)[ \t:：]*{_KIND}[(（]*(?P<letter2>[A-Za-z])(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"(?:\A|(?<=\n)|(?<=[.!?] ))(?:it(?:'s| is)|so|hence|thus|therefore|choose|select|pick|"
    rf"(?:final |correct )?ans(?:wer|\b\.?)),?[ \t]+{_KIND}{_LETTER}"
    r"(?=[ \t]*(?:(?<!I)\Z|\.?[ \t]*(?:\n|(?<=\.)\Z)|[;!]|\b(?:because|since|as)\b))",
    re.IGNORECASE,
)
"""A line's last sentence that is a letter but for one word: "It's B", "Choose B."; no "B cells", no cut "So I"."""
_INTRODUCTION = re.compile(
    r"(?:based on|according to|given|judging by)\b[^,.;:\n]{0,40}\b(?:context|documents?|passages?|texts?|"
    r"evidence|information|stud(?:y|ies)|articles?|abstracts?|sources?|results|findings|data|trials?|above)\b"
    r"[^,.;:\n]{0,40},[ \t]*",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"\W{{0,20}}{_KIND}{_LETTER}\W*\Z", re.IGNORECASE)
_LEADING = re.compile(
    rf"[ \t>#-]*{_KIND}"
    r"(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])[).:：]+|([A-Z])(?=[ \t]*[-–—,;][ \t]|\n))(?=\W|\Z|(?<=[:：]))",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"(?:[)\]}>\"'”’.:]*)(?:[ \t]*\([^()\n]*\))?[ \t]*"
    r"(?:,|;)?[ \t]*(?:or|and|and/or|und|oder|et|ou|y|o|e|和|或|以及|及|,|;|/|&|\+|、)[ \t]*"
    r"(?:also |possibly |maybe |perhaps |then )?"
    r"(?:option |choice )?[(\[\"']?(?P<other>[A-Za-z])(?![\w'’])"
)
_FURTHER = re.compile(r"(?:,|;|\band|\bor|/|&|\bund|\boder|\bet|\by|和|或)[ \t]*\(?([A-Z])(?:[).:]|\b(?![\w' ]\w))")
_REJECTED = re.compile(
    r"\b(?:is|are|was) not (?:correct|right|true)\b|\b(?:is|are)n't\b|\bwrong\b|\bincorrect\b|\bruled out\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(r"\A[^.\n]{0,20}\b(?:is|was)[ \t]+(?:not correct|not right|wrong|incorrect)\b", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:if(?! i ha(?:d|ve) to)|assuming|unless|suppose|provided|might think|may think|could think|tempt\w+|"
    r"mistake\w*|whether|can(?:no|['’])t be sure|either|neither|wenn|si|falls)\b|如果|若|假如",
    re.IGNORECASE,
)
_TURN = re.compile(r"\b(?:but|however|so|still|i (?:would|think|believe|'d|choose))\b", re.IGNORECASE)
_UNDECIDED = re.compile(
    r"\b(?:can(?:not|['’]t| not) (?:be )?(?:determine|decide|choose|say|tell|answer)\w*|(?:could|might|may) be|"
    r"depends on|not (?:enough|sufficient)|insufficient|unclear|impossible to|unable to)\b",
    re.IGNORECASE,
)
_CONNECTED = re.compile(
    r"[ \t]*(?:\Z|\n|[^\w\s]|(?:because|since|as|for|due|and|which|given|based|with|so|but|or|is|rather|not|where|that|"
    r"according|from|by|in|[A-Z(])\b)"
)
"""What may follow the letter A, so that it is no article."""
_CONDITIONAL = -1
"""A statement that holds under a condition; it counts for nothing beside one that holds without."""
_MARKUP = str.maketrans(dict.fromkeys("*`$\u200b", ""))
_LATEX = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit|bf)\s*\{([^{}]*)\}")


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names; None where it names none, or more than one."""
    text = _plain(without_end_of_turn(answer))
    if not text:
        return None
    reader = _ChoiceReader(text, options)
    for statements in (reader.fields, reader.surest, reader.said, reader.judged):
        if indices := statements():
            return next((index for index in reversed(indices) if index != _CONDITIONAL), None)
    return reader.bare()


def choice_fields(text: str) -> list[str]:
    """The values of the JSON fields that hold the choice, such as `answer_choice`, of the last object with such."""
    fields = [
        [
            str(member[0]) if isinstance(member, list) and len(member) == 1 else str(member)
            for key, member in value.items()
            if _FIELD.fullmatch(str(key).strip()) and isinstance(member, str | int | list)
        ]
        for value in find_values(text)
        if isinstance(value, dict)
    ]
    return next(filter(None, reversed(fields)), [])


def _plain(text: str) -> str:
    """The text in plain letters: without emphasis, LaTeX fonts and full-width forms."""
    text = unicodedata.normalize("NFKC", text).replace("’", "'")
    for _ in range(2):
        text = _LATEX.sub(r"\1", text)
    return text.translate(_MARKUP).replace("__", "").strip()


class _ChoiceReader:
    """Finds statements in one answer. A statement is the index of an option, or None where it names none for sure."""

    def __init__(self, text: str, options: Sequence[str]) -> None:
        self.text, self.options = text, options
        self.normal = [normalise(option) for option in options]

    def fields(self) -> list[int | None]:
        """The JSON fields for the choice; all of them must agree."""
        values = choice_fields(self.text)
        indices = {self._named(value) for value in values}
        return [indices.pop() if len(indices) == 1 else None] if values else []

    def surest(self) -> list[int | None]:
        """The last boxed or tagged answer; then "final answer: B"."""
        marks = sorted((*_BOXED.finditer(self.text), *_TAGGED.finditer(self.text)), key=lambda mark: mark.start())
        if marks:
            return [self._named(next(filter(None, marks[-1].groups()), ""))]
        return self._statements([mark for mark in _IS_ANSWER.finditer(self.text) if mark["final"]])

    def said(self) -> list[int | None]:
        """ "The answer is B", "Answer: aspirin", in the order of the text."""
        marks = {mark.end("letter"): mark for mark in (*_IS_ANSWER.finditer(self.text), *_KEY.finditer(self.text))}
        statements = [(position, option) for position, mark in marks.items() for option in self._statements([mark])]
        letters = [position for position, _ in statements]
        for mark in _IS_TEXT.finditer(self.text):
            index = self._option_at_start(mark["text"])
            if index is None or self._conditional(mark.start("text")):
                continue
            if not any(mark.start() <= position <= mark.end() for position in letters):
                statements.append((mark.start("text"), index))
        return [option for _, option in sorted(statements, key=lambda item: item[0])]

    def judged(self) -> list[int | None]:
        """ "Option B is correct", "I choose B": all of them must name the same option."""
        statements: list[int | None] = []
        for mark in _CORRECT.finditer(self.text):
            if mark["letter"].isupper() and (mark["kind"] or _BEFORE_LETTER.search(self.text[: mark.start()])):
                joined = re.search(r"\b[A-Z]\)?[ \t]*(?:\band|\bor|,|/|&)[ \t]*\Z", self.text[: mark.start()])
                statements += self._statements([mark]) if joined is None else [None]
        for index, option in enumerate(self.options):
            words = rf"(?<!\w){re.escape(option.strip())}{_IS_CORRECT}"
            if option.strip() and re.search(words, self.text, re.IGNORECASE):
                statements.append(index)
        for mark in _CHOOSE.finditer(self.text):
            statements += self._statements([mark], "letter" if mark["letter"] else "letter2")
        return [statements[0] if len(set(statements)) == 1 else None] if statements else []

    def bare(self) -> int | None:
        """A letter or the words of an option: alone, first, on the last line, or but for a word or an introduction."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        while len(lines) > 1 and is_remark(lines[-1]):
            lines.pop()
        if (index := self._named("\n".join(lines))) is not None:
            return index
        if _UNDECIDED.search(self.text):
            return None
        leading = {index: line for line in lines if (index := self._leading(line)) is not None}
        if leading:
            ends = [line for line in (lines[0], lines[-1]) if self._leading(line) is not None]
            return self._leading(ends[0]) if len(leading) == 1 and ends and not self._another(ends[0]) else None
        outer = {index for line in (lines[0], lines[-1]) if (index := self._named(line)) is not None}
        if outer:
            return outer.pop() if len(outer) == 1 else None
        if (index := self._option_at_start(self.text)) is not None:
            return index
        introduced = [(line, mark) for line in (lines[0], lines[-1]) if (mark := _INTRODUCTION.match(line))]
        short = [mark for mark in _SHORT.finditer(self.text) if mark["letter"].isupper() or mark["close"]]
        indices = {*self._statements(short), *(self._option_at_start(line[mark.end() :]) for line, mark in introduced)}
        return indices.pop() if len(indices) == 1 and _CONDITIONAL not in indices else None

    def _statements(self, marks: Sequence[re.Match[str]], group: str = "letter") -> list[int | None]:
        statements: list[int | None] = []
        for mark in marks:
            letter, after = mark[group], self.text[mark.end(group) :]
            closed = bool(mark["close"])
            if letter.islower() and not (closed or re.match(r"\s*(?:[.,;:)\]\"']|\Z|\n)", after)):
                continue  # an article, or the start of a word
            if letter in "AaIi" and not (closed or _CONNECTED.match(after)):
                index = self._option_at_start(letter + after)
                statements += [index] if index is not None else []
                continue
            if re.match(r"[)\]\"'.]*\s*\?", after) or _RETRACTED.match(after):
                continue
            index = self._index(letter)
            also = _ALSO.match(self._after_option(after, index))
            two = also is not None and self._index(also["other"]) not in (None, index)
            conditional = self._conditional(mark.start()) or re.match(r",?[ \t]+(?:if|unless|but only if)\b", after)
            certain = None if two or self._contradicts(index, after) else index
            statements.append(_CONDITIONAL if conditional else certain)
        return statements

    def _after_option(self, after: str, index: int | None) -> str:
        """What follows a letter, without the words of its option."""
        words = re.escape(self.options[index].strip()) if index is not None else "(?!)"
        return re.sub(rf"\A[)\]}}>\"'.:\s-]*{words}", "", after, count=1, flags=re.IGNORECASE)

    def _conditional(self, position: int) -> bool:
        """Whether the sentence of a position says under which condition the statement holds."""
        start = max(self.text.rfind(mark, 0, position) for mark in ("\n", ". ", "? ", "! ", "; ", "。"))
        preceding = self.text[start + 1 : position]
        return _CONDITION.search(_TURN.split(preceding)[-1]) is not None

    def _contradicts(self, index: int | None, after: str) -> bool:
        """Whether the letter is followed by the words of another option."""
        line = normalise(re.sub(r"\A[)\]}>\"'”’.:,\s-]+", "", after).split("\n")[0])
        same_option = index is not None and self.normal[index] == line
        return bool(line) and line in self.normal and not same_option

    def _named(self, text: str) -> int | None:
        """The option that a short text names: a letter, a letter and its option, or the option's words."""
        text = text.strip().strip("{}\"'")
        mark = _ALONE.match(text)
        if mark and (index := self._index(mark["letter"])) is not None:
            return index
        exact = [index for index, option in enumerate(self.normal) if option and option == normalise(text)]
        if len(exact) == 1:
            return exact[0]
        if "\n" in text or self._another(text):
            return None
        return self._leading(text)

    def _leading(self, line: str) -> int | None:
        """The option whose letter a line begins with; None for an abbreviation ("e.g.") and for the words of another
        option behind the letter."""
        mark = _LEADING.match(line)
        if mark is None:
            return None
        letter, remainder = next(filter(None, mark.groups())), line[mark.end() :]
        if re.match(r"[a-zA-Z]\.", remainder) or (letter.islower() and mark[3]):
            return None
        index = self._index(letter)
        return None if self._contradicts(index, remainder) else index

    def _another(self, line: str) -> bool:
        """Whether a line that begins with a letter goes on to another option, or rejects its own."""
        mark = _LEADING.match(line)
        remainder = line[mark.end() :] if mark else line
        further = {self._index(letter) for letter in _FURTHER.findall(remainder)} - {None, self._leading(line)}
        return bool(further) or _REJECTED.search(remainder) is not None

    def _option_at_start(self, text: str) -> int | None:
        """The option whose words a text begins with; None where another one follows in the sentence."""
        sentence = re.split(r"(?<=[.!?。])\s|\n", text.strip().strip("\"'“” "), maxsplit=1)[0]
        clause = re.split(r"[.,;:!?。，；、—–(]|\s-\s|\bbecause\b|\bsince\b|\bas\b", sentence, maxsplit=1)[0]
        if _UNDECIDED.search(sentence):
            return None
        candidates = {normalise(sentence), normalise(clause)}
        matches = [index for index, option in enumerate(self.normal) if option and option in candidates]
        if len(matches) != 1:
            return None
        remainder = f" {normalise(sentence)[len(self.normal[matches[0]]) :]} "
        alternatives = [option for index, option in enumerate(self.normal) if index != matches[0]]
        mentionable = [option for option in alternatives if len(option) > 3 or option in ("yes", "no")]
        return None if any(f" {option} " in remainder for option in mentionable) else matches[0]

    def _index(self, option_letter: str | None) -> int | None:
        if not option_letter:
            return None
        index = string.ascii_uppercase.find(option_letter.upper())
        return index if 0 <= index < len(self.options) else None
