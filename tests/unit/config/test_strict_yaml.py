"""Reading YAML strictly: each refusal names the file, the line and the key."""

import json
import time
from pathlib import Path

import pytest

from flushtracker.config.strict_yaml import YamlMapping, read_yaml
from flushtracker.config.yaml_tree import compose
from flushtracker.errors import ConfigError
from tests.support.config_files import DURATION, ConfigFile, shown

FILE = ConfigFile("x.yaml", lambda path: read_yaml(path, {}))


def read(folder: Path, text: str | bytes, **environ: str) -> YamlMapping:
    """The mapping of a file with this text, with ``environ`` as the whole environment."""
    return ConfigFile("x.yaml", lambda path: read_yaml(path, environ)).load(folder, text)


def test_a_value_is_read_by_its_type(tmp_path: Path) -> None:
    """Texts, numbers, durations, lists and mappings are returned with their types."""
    root = read(tmp_path, 'text: a\nnumber: 16\nwait: "2 minutes"\nlist: [a, b]\ninner: {key: v}\nempty: ""\n')

    assert root.text("text").value == "a"
    assert root.optional_integer("number", at_least=0) == 16
    assert root.optional_duration_ms("wait") == 120_000
    assert [text.value for text in root.optional_texts("list") or ()] == ["a", "b"]
    assert root.mapping("inner").scalars() == {"key": "v"}
    assert root.text("empty", empty=True).value == ""


def test_an_absent_key_has_its_default(tmp_path: Path) -> None:
    """Optional keys may be left out."""
    root = read(tmp_path, "text: a\n")
    root.fill("filled", compose("7", root.origin))
    root.fill("text", compose("b", root.origin))

    assert (root.integer("filled", at_least=1), root.text("text").value) == (7, "a")
    assert root.optional_text("other") is None
    assert root.optional_integer("number", at_least=1) is None
    assert root.optional_duration_ms("wait") is None
    assert root.optional_texts("list") is None
    assert root.optional_mapping("inner") is None


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    """A typo gets a suggestion, anything else the list of known keys."""
    inner = read(tmp_path, "state:\n  checkpoint: data\n  shape_group: 4\n").mapping("state")
    with pytest.raises(ConfigError) as caught:
        inner.allow("checkpoint", "shape_groups")
    assert shown(tmp_path, caught) == "x.yaml line 3: state.shape_group is not a known key; did you mean shape_groups?"

    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "a: 1\nqqq: 2\n").allow("a", "source")
    assert shown(tmp_path, caught) == "x.yaml line 2: qqq is not a known key; known keys: a, source"


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    """YAML would silently use the last one."""
    assert FILE.refusal(tmp_path, "a: 1\nb: 2\na: 3\n") == "x.yaml line 3: duplicate key a, first on line 1"
    inner = "s:\n  k: 1\n  k: 1\n"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, inner).mapping("s")
    assert shown(tmp_path, caught) == "x.yaml line 3: duplicate key s.k, first on line 2"


def test_a_missing_key_is_named_with_the_line_of_its_mapping(tmp_path: Path) -> None:
    """A missing key has no line of its own."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "a: 1\nstate:\n  x: 1\n").mapping("state").text("checkpoint")
    assert shown(tmp_path, caught) == "x.yaml line 2: state.checkpoint is missing"


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("12", "key is a number; put it in quotes if a string is meant"),
        ("no", "key is a boolean; put it in quotes if a string is meant"),
        ("2026-11-21", "key is a date; put it in quotes if a string is meant"),
        ("", "key has no value; give it one or leave the key out"),
        ("~", "key has no value; give it one or leave the key out"),
        ('""', "key is empty"),
        ("[a]", "key is a list, not a single value"),
        ("{a: b}", "key is a mapping, not a single value"),
        ("!!python/name:os.system x", "key is a node with the unknown tag python/name:os.system, not a single value"),
        ("!secret x", "key is a node with the unknown tag !secret, not a single value"),
        (r'"a\0b"', "key contains a NUL or an unpaired surrogate, which no name, path or text can contain"),
        (r'"\ud800"', "key contains a NUL or an unpaired surrogate, which no name, path or text can contain"),
    ],
)
def test_a_value_that_is_not_text_is_refused_with_its_kind(tmp_path: Path, value: str, fact: str) -> None:
    """YAML turns many bare words into something else; the message has the kind."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"first: 1\nkey: {value}\n").text("key")
    assert shown(tmp_path, caught) == f"x.yaml line 2: {fact}"


def test_a_character_that_json_writes_as_two_escapes_is_one(tmp_path: Path) -> None:
    """In a key, too, so a file that a JSON encoder has written is read as it was meant."""
    names = {"a\U0001f600": "x\U0001f600\U0010ffff", "b": "\U00010000 and \u20ac"}
    text = json.dumps({"names": names})
    assert "\\ud83d\\ude00" in text
    assert read(tmp_path, text).mapping("names").scalars() == names


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("abc", "n is 'abc', not a whole number"),
        ('"16"', "n is '16', not a whole number"),
        ("1.5", "n is '1.5', not a whole number"),
        ("010", "n is '010', not a whole number"),
        ("1:30", "n is '1:30', not a whole number"),
        ("true", "n is 'true', not a whole number"),
        ("9" * 5000, f"n is '{'9' * 60}…', not a whole number"),
        ("0", "n is '0', not a number of at least 1"),
        ("-3", "n is '-3', not a number of at least 1"),
        ("2147483648", "n is '2147483648', not a number of at most 2147483647"),
        ("[1]", "n is a list, not a single value"),
        ("", "n has no value; give it one or leave the key out"),
    ],
)
def test_a_value_that_is_not_a_whole_number_in_range_is_refused(tmp_path: Path, value: str, fact: str) -> None:
    """Octal, sexagesimal and quoted numbers are refused too: none is what the author meant."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"n: {value}\n").integer("n", at_least=1)
    assert shown(tmp_path, caught) == f"x.yaml line 1: {fact}"


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("false", False), ("${B}", True)])
def test_a_boolean_is_read(tmp_path: Path, value: str, expected: bool) -> None:  # noqa: FBT001  the value itself
    """Also from a variable; an absent key has none."""
    root = read(tmp_path, f"b: {value}\n", B="true")
    assert root.optional_boolean("b") is expected
    assert root.optional_boolean("c") is None


@pytest.mark.parametrize("value", ["yes", "on", "True", "1", "'true'", "auto"])
def test_a_value_that_is_not_a_boolean_is_refused(tmp_path: Path, value: str) -> None:
    """YAML has many spellings of truth, of which one is enough."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"b: {value}\n").optional_boolean("b")
    shown_value = value.strip("'")
    assert shown(tmp_path, caught) == f"x.yaml line 1: b is '{shown_value}', not true or false"


@pytest.mark.parametrize("value", ["60", "60 fortnights", "0 seconds", "1.5 seconds", "-1 seconds", "mss", "1 mss"])
def test_a_malformed_duration_is_refused(tmp_path: Path, value: str) -> None:
    """A duration without its unit could mean anything."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f'wait: "{value}"\n').optional_duration_ms("wait")
    assert shown(tmp_path, caught) == (f"x.yaml line 1: wait is '{value}', not " + DURATION)


def test_a_list_is_refused_with_the_position_of_its_bad_item(tmp_path: Path) -> None:
    """Items are counted from 0, in the order of the file, and each has its line."""
    root = read(tmp_path, "a: [x, 1]\nb:\n  - x\n  - y\n  - x\nc: x\nd: [{k: 1}, x]\n")
    for key, message in (
        ("a", "x.yaml line 1: a[1] is a number; put it in quotes if a string is meant"),
        ("b", "x.yaml line 5: b lists 'x' twice"),
        ("c", "x.yaml line 6: c is a string, not a list"),
    ):
        with pytest.raises(ConfigError) as caught:
            root.optional_texts(key)
        assert shown(tmp_path, caught) == message
    first, second = root.mappings("d")
    with pytest.raises(ConfigError) as caught:
        raise second if isinstance(second, ConfigError) else AssertionError(first)
    assert shown(tmp_path, caught) == "x.yaml line 7: d[1] is a string, not a mapping of keys to values"


def test_a_variable_is_filled_in(tmp_path: Path) -> None:
    """In the middle of a text, more than once, as a number; its value is not expanded again."""
    root = read(tmp_path, 'path: "${A}/x/${B}"\nn: ${N}\nliteral: "$${A} $5"\n', A="s3://b", B="${A}", N="8")

    assert root.text("path").value == "s3://b/x/${A}"
    assert root.optional_integer("n", at_least=1) == 8
    assert root.text("literal").value == "${A} $5"


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("${MISSING}", "key names the environment variable MISSING, which is not set"),
        ("${A-b}", "key contains a ${ that is not ${NAME}; write a literal one as $${"),
        ("a${", "key contains a ${ that is not ${NAME}; write a literal one as $${"),
        ("${EMPTY}", "key is empty, expanded from '${EMPTY}'"),
    ],
)
def test_a_variable_that_cannot_be_filled_in_is_refused(tmp_path: Path, value: str, fact: str) -> None:
    """The message names the variable and the line."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f'a: 1\nkey: "{value}"\n', EMPTY="").text("key")
    assert shown(tmp_path, caught) == f"x.yaml line 2: {fact}"


def test_no_message_shows_the_value_of_a_variable(tmp_path: Path) -> None:
    """It may be a secret: messages and their causes name the variable instead."""
    root = read(tmp_path, 'n: ${S}\nwait: "${S}"\nlist: ["${S}", "${S}"]\nchoice: "${S}"\n', S="hunter2")
    errors = [root.wrong("choice", "this or that")]
    for read_key in (
        lambda: root.optional_integer("n", at_least=0),
        lambda: root.optional_duration_ms("wait"),
        lambda: root.optional_texts("list"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_key()
        errors.append(caught.value)

    assert [str(error).partition("x.yaml ")[2] for error in errors] == [
        "line 4: choice is '${S}', not this or that",
        "line 1: n is '${S}', not a whole number",
        "line 2: wait is '${S}', not " + DURATION,
        "line 3: list lists '${S}' twice",
    ]
    assert all(error.__cause__ is None and "hunter2" not in str(error) for error in errors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml is empty"),
        ("# nothing\n", "x.yaml is empty"),
        ("- a\n", "x.yaml line 1: expected a mapping of keys to values"),
        ("a: b: c\n", "x.yaml line 1: not YAML: mapping values are not allowed here"),
        (
            "a: [b\n",
            "x.yaml line 2: not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "x.yaml line 2: not YAML: expected a single document in the stream, but found another document",
        ),
        ("a: *nobody\n", "x.yaml line 1: not YAML: found undefined alias 'nobody'"),
        ("a: 1\nb: \x07\n", "x.yaml line 2: not YAML: it contains the control character U+0007"),
        ("a: 1\n[x]: 2\n", "x.yaml line 2: the file has a key that is not a string"),
        (b"a: 1\nb: \xff\n", "x.yaml line 2: not UTF-8 text"),
        ("a: " + "[" * 5000, "x.yaml line 1: more than 50 lists and mappings are nested in each other"),
        ("a:\n" + "- " * 5000, "x.yaml line 2: more than 50 lists and mappings are nested in each other"),
        ("a: " + "{k: " * 5000, "x.yaml line 1: more than 50 lists and mappings are nested in each other"),
        ("a: 1\n" + "? " * 5000, "x.yaml line 2: more than 50 lists and mappings are nested in each other"),
    ],
)
def test_anything_but_a_yaml_mapping_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    """In one line, whatever the file contains."""
    assert FILE.refusal(tmp_path, text) == message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """If it is missing or a folder, the message has the system's own reason."""
    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "none.yaml")
    assert shown(tmp_path, caught) == "none.yaml cannot be read: No such file or directory"
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "folder")
    assert shown(tmp_path, caught) == "folder cannot be read: Is a directory"


@pytest.mark.parametrize("escape", ["\\n", "\\e[31m", "\\ud800", "\\u2028"])
def test_a_key_that_cannot_be_printed_is_refused_on_one_line(tmp_path: Path, escape: str) -> None:
    """It would break the line of the message, or the terminal."""
    file = tmp_path / "x.yaml"
    file.write_text(f'a: 1\n"b{escape}": 2\n')
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert "x.yaml line 2: the file has the key 'b" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", [f"? {'x' * 900}\n: 1\n", f"a: *{'x' * 900}\n", f"a: !{'x' * 900} 1\n", f"a: ${{{'X' * 900}}}\n"]
)
def test_messages_are_short_whatever_the_file_has(tmp_path: Path, text: str) -> None:
    """Long keys, aliases, tags and variables are cut."""
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:  # noqa: PT012  either call refuses
        root = read_yaml(file)
        root.text("a") if "a" in root else root.allow("a")
    assert len(str(caught.value)) < len(str(file)) + 400


def test_thousands_of_open_brackets_are_refused_before_they_cost_anything(tmp_path: Path) -> None:
    """PyYAML would take seconds for them, quadratic in their number; fifty levels are more than any file has."""
    (tmp_path / "x.yaml").write_text("a: " + "[" * 100_000)
    started = time.thread_time()
    with pytest.raises(ConfigError, match="more than 50 lists and mappings"):
        read_yaml(tmp_path / "x.yaml")
    assert time.thread_time() - started < 0.1
    assert "a" in read(tmp_path, "a: " + "[" * 49 + "]" * 49)


def test_nested_aliases_cost_nothing(tmp_path: Path) -> None:
    """A billion texts in ten lines are refused like anything else, and so is a list within itself."""
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 31)]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "\n".join(lines)).optional_texts("a30")
    assert shown(tmp_path, caught) == "x.yaml line 30: a30[0] is a list, not a single value"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "a: &a [*a]\n").optional_texts("a")
    assert shown(tmp_path, caught) == "x.yaml line 1: a[0] is a list, not a single value"


def test_an_alias_is_read_as_its_value(tmp_path: Path) -> None:
    """Anchors are allowed, and their values are checked as usual."""
    root = read(tmp_path, "a: &a x\nb: *a\n")
    assert root.text("b").value == "x"


def test_a_scalar_is_kept_as_written(tmp_path: Path) -> None:
    """Options are passed on to a library, for which 500000, true and "x" are all text."""
    root = read(tmp_path, 'a: {n: 500000, b: true, t: "x", f: 0.50, v: "${V}"}', V="s")
    assert root.mapping("a").scalars() == {"n": "500000", "b": "true", "t": "x", "f": "0.50", "v": "s"}
