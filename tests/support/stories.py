"""What the examples of the orchestrator print on a real model: each of these, in a line."""

from typing import Final

LOSER: Final = (
    r"  stopped quiz#\d+ while (running|waiting|admitting|queued) after .*, confirmed: True"
)
STORIES: Final = {
    "subagent_fanout": [
        r"fix-bug-42/reader called (read_file|grep)\(\{.*\}\)",
        r"fix-bug-42/finder called (read_file|grep)\(\{.*\}\)",
        r"fix-bug-42/reader says: ",
        r"fix-bug-42/finder says: ",
        r"the tokens budget of 'fix-bug-42/talker' \(48\) allows no more; spent there: 48 tokens, ",
        r"fix-bug-42/wanderer#\d+ was local: stopped after \d+ ms, confirmed: True",
        r"fix-bug-42/wanderer#\d+ was running: .*, confirmed: True, \d+ of 600 tokens made",
        r"The lead sums up: .",
        r"  fix-bug-42: \d+ tokens in 7 calls",
        r"  fix-bug-42/talker: 48 tokens in 1 calls",
    ],
    "race_and_hedge": [
        r"map: France: .*Paris",
        r"map: Italy: .",
        r"map: Spain: .",
        r"map: Japan: .",
        rf"race: .*Paris.*\n{LOSER}\n{LOSER}\n  saved at most 2\d\d tokens",
        r"hedge: .* \([12] started\)",
        r"best_of: .* \(score 0\.\d\d\)",
        rf"gather: cancelled, \d+ characters: .*\n{LOSER}\n  saved at most 8\d\d tokens",
        r"Spent \d+ tokens in 1[345] calls; cancelling saved at most \d+ tokens, \d+\.\d s",
    ],
    "tool_streams": [
        r"\d+ events in one order: \{'model': \d+, 'headings': \d+, 'grep': \d+, 'count_lines': ",
        r"The model called (headings|grep)\(\{.*\}\): \d+ lines",
        r"It says: ",
        r"Stopped here after \d+ ms; no process of it is left: True",
        r"Stopped tool-host after \d+ ms; no process of it is left: True",
    ],
}
