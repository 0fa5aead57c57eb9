"""What a singer sings without a head is what the model sings, and what is kept of it is counted."""

from unmasked_lessons.experiments.silence import kept, story
from unmasked_lessons.teaching import Singer, verse


def test_all_verses_are_sung_whole_and_without_each_head():
    singer = Singer()  # untrained: what it sings is no verse
    told = story(singer, hums=2)
    assert (told["given"], len(told["right"])) == (4, 10)
    assert " ".join(told["right"][3]) == f"la la {verse(7)}"
    for name, silent in {"with both heads": None, "without head 0": 0, "without head 1": 1}.items():
        words = told["sung"][name][3]
        assert " ".join(words) == singer.sing("la la seven green", len(words) - 4, silent=silent)
        assert len(words) == len(told["right"][3])
    assert [*told["sung"]] == ["with both heads", "without head 0", "without head 1"]
    name, at = told["start"]
    assert told["sung"][name][at][2] == "nine"


def test_lines_are_kept_without_regard_to_numbers_and_the_second_number_is_looked_at_alone():
    right = verse(7).split()
    forgotten = ["one" if word in ("seven", "six") else word for word in right]
    again = (right[:3] * 7)[: len(right)]
    sung = {"whole": [right], "one number": [forgotten], "one line": [again]}
    told = {"given": 2, "right": [right], "sung": sung, "start": ("whole", 0)}
    assert kept(told) == {"whole": (1, 1), "one number": (1, 0), "one line": (0, 1)}
