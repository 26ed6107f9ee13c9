"""What real programs sent to a terminal (`xterm-256color`), as it was recorded."""

LS = (
    b"total 8\r\ndrwxr-xr-x 2 4096  \x1b[0m\x1b[01;34md\x1b[0m/\r\nlrwxrwxrwx 1    9  \x1b[01;36mlink"
    b"\x1b[0m -> notes.txt\r\n-rw-r--r-- 1   14  notes.txt\r\n-rwxr-xr-x 1    0  \x1b[01;32mrun.sh\x1b[0m*\r\n"
)
"""`ls --color=always -lF`"""

VIM = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[>4;2m\x1b[?1h\x1b=\x1b[?2004h\x1b[?1004h\x1b[1;6r\x1b[?12h\x1b[?12l\x1b[22;2t"
    b'\x1b[22;1t\x1b[27m\x1b[23m\x1b[29m\x1b[m\x1b[H\x1b[2J\x1b[?25l\x1b[6;1H"notes.txt" 3L, 14B'
    b"\x1b[2;1H\xe2\x96\xbd\x1b[6n\x1b[2;1H  \x1b[3;1H\x1bPzz\x1b\\\x1b[0%m\x1b[6n\x1b[3;1H           \x1b[1;1H"
    b"\x1b[>c\x1b]10;?\x07\x1b]11;?\x07\x1b[1;1Hone\r\ntwo\x1b[2;4H\x1b[K\x1b[3;1Hthree\x1b[3;6H\x1b[K\x1b[4;1H"
    b"\x1b[94m~                             \x1b[5;1H~                             \x1b[1;1H\x1b[?25h\x1b[?4m"
    b"\x1b[?25l\x1b[m\x1b[6;1H\x1b[1m-- INSERT --\x1b[m\x1b[6;13H\x1b[K\x1b[6;1H\x1b[K"
    b"\x1b[1;7H\rhello \xe4\xbd\xa0one\x1b[6;1H\x1b[1m-- INSERT --\x1b[1;9H\x1b[?25h\x1b[?25l\x1b[m\x1b[6;1H\x1b[K"
    b"\x1b[1;7H\x1b[?25h\r\n\x1b[?25l\x1b[2;5r\x1b[5;1H\r\n\x1b[1;6r\x1b[5;1H\x1b[94m~                             "
    b"\x1b[2;1H\x1b[?25h\x1b[?25l\x1b[6;1H\x1b[m:set number\r\x1b[1;1H\x1b[38;5;130m  1 "
    b"\x1b[mhello \xe4\xbd\xa0one\r\n\x1b[38;5;130m  2 \x1b[mthree\x08\x08\x08\x08\x08\x1b[?25h"
)
"""`vim notes.txt` in 6 rows of 30 columns, then `ihello 你`, ESC, `2Gdd`, `:set number`. The file: one, two, three."""

VIM_QUITS = (
    b"\x1b[?25l\x1b[6;1H\x1b[K\x1b[6;1H:q!\r\x1b[?2004l\x1b[>4;m\x1b[23;2t\x1b[23;1t\x1b[6;1H\x1b[K\x1b[6;1H"
    b"\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>\x1b[?1049l\x1b[23;0;0t\x1b[?25h\x1b[>4;m"
)
"""Then `:q!`."""

LESS = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\rline 1\r\nline 2\r\nline 3\r\nline 4\r\n\x1b[7mlong.txt\x1b[27m\x1b[K\r"
    b"\x1b[Kline 5\r\nline 6\r\nline 7\r\nline 8\r\n:\x1b[K\r\x1b[K/\x1b[K1\x081\x1b[K5\x085\r\x1b[K"
    b"\x1b[1;1Hline 5\r\n\x1b[2;1Hline 6\r\n\x1b[3;1Hline 7\r\n\x1b[4;1Hline 8\r\n\x1b[5;1H\x1b[1;1Hline 5\r\n"
    b"\x1b[2;1Hline 6\r\n\x1b[3;1Hline 7\r\n\x1b[4;1Hline 8\r\n\x1b[5;1H...skipping...\r\nline \x1b[7m15"
    b"\x1b[27m\r\nline 16\r\nline 17\r\nline 18\r\n:\x1b[K"
)
"""`less` over 20 lines in 5 rows of 20 columns, then a page on, then `/15`."""

BASH_EDITS = (
    b"\x1b[?2004h$ ecko hi\x08\x08\x08\x08\x08\x08\x1b[1P\x1b[1@h\x1b[C\x1b[C\x1b[C\x1b[C\x1b[C!\r\x1b[C\x1b[C"
    b"\x1b[1P\x1b[1@e\r\n\x1b[?2004l\rbash: ehko: command not found\r\n\x1b[?2004h$ "
)
"""`ecko hi` at bash's prompt; back five and one deleted, an `h` put in, `!` at the end, the first letter replaced."""

BASH_WIDE = b"\x1b[?2004h$ echo \xe4\xbd\xa0\xe5\xa5\xbd\x08\x08\x1b[Kx\r\n\x1b[?2004l\r\xe4\xbd\xa0x\r\n\x1b[?2004h$ "
"""`echo 你好` at bash's prompt, then backspace and `x`."""

BASH_UNDO = b"\x1b[?2004h$ ls /etc/\r\x1b[C\x1b[C\x1b[Kprintf 'a\\tb\\n'\r\n\x1b[?2004l\ra\tb\r\n\x1b[?2004h$ "
"""`ls /et`, completed by a tab, killed by C-u, and another command."""

CAT_ECHO = b"abc\x08 \x08\x08 \x08d\r\nad\r\n\tx\x08 \x08\x08\x08\x08\x08\x08\x08\x08\x08y\r\ny\r\n"
"""`cat`: what the terminal itself echoes for abc, two backspaces, d; then for a tab, x, two backspaces, y."""
