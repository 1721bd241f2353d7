"""`completion`: a script that lets a shell complete `jupyter-cmdop …` and `jupyter cmdop …`.

The work is argcomplete's: the shell runs the program with the line so far in its environment. Jupyter's launcher
knows nothing of that, so for `jupyter cmdop …` the script asks `jupyter-cmdop` and gives it the line as if that had
been typed. Whatever else completed `jupyter` before goes on doing so.
"""

from __future__ import annotations

import argparse

from . import exits
from .output import print_text

_BASH = r"""# completion of jupyter-cmdop and jupyter cmdop for bash
_jupyter_cmdop_ask() {  # the line as if jupyter-cmdop had been typed, and the cursor's place in it
    local IFS=$'\013'
    COMPREPLY=($(IFS="$IFS" COMP_LINE="$1" COMP_POINT="$2" COMP_TYPE="${COMP_TYPE-9}" \
        _ARGCOMPLETE_COMP_WORDBREAKS="$COMP_WORDBREAKS" _ARGCOMPLETE=1 _ARGCOMPLETE_SHELL=bash \
        _ARGCOMPLETE_SUPPRESS_SPACE=1 jupyter-cmdop 8>&1 9>&2 1>/dev/null 2>&1 </dev/null))
    if [[ $? != 0 ]]; then
        COMPREPLY=()
    elif [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

_jupyter_cmdop() {
    _jupyter_cmdop_ask "$COMP_LINE" "$COMP_POINT"
}

_jupyter_cmdop_below_jupyter() {
    if [[ $COMP_CWORD -ge 2 && ${COMP_WORDS[1]} == cmdop ]]; then
        local rest="${COMP_LINE#*cmdop}"
        local cut=$(( ${#COMP_LINE} - ${#rest} - ${#_jupyter_cmdop_program} ))
        _jupyter_cmdop_ask "$_jupyter_cmdop_program$rest" "$(( COMP_POINT - cut ))"
    elif [[ -n $_jupyter_cmdop_before ]]; then
        "$_jupyter_cmdop_before" "$@"
    elif [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "$(compgen -c jupyter- | sed 's/^jupyter-//' | sort -u)" -- "${COMP_WORDS[1]}"))
    fi
}

_jupyter_cmdop_program=jupyter-cmdop
_jupyter_cmdop_found=$(complete -p jupyter 2>/dev/null | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
if [[ $_jupyter_cmdop_found != _jupyter_cmdop_below_jupyter ]]; then  # else this is not the first time
    _jupyter_cmdop_before=$_jupyter_cmdop_found
fi
complete -o default -o bashdefault -F _jupyter_cmdop jupyter-cmdop
complete -o default -o bashdefault -F _jupyter_cmdop_below_jupyter jupyter
"""

_ZSH = r"""#compdef jupyter-cmdop jupyter
# completion of jupyter-cmdop and jupyter cmdop for zsh
_jupyter_cmdop_ask() {
    local completions
    local IFS=$'\013'
    completions=($(IFS="$IFS" COMP_LINE="$1" COMP_POINT="$2" _ARGCOMPLETE=1 _ARGCOMPLETE_SHELL=zsh \
        _ARGCOMPLETE_SUPPRESS_SPACE=1 jupyter-cmdop 8>&1 9>&2 1>/dev/null 2>&1 </dev/null))
    _describe jupyter-cmdop completions
}

_jupyter_cmdop() {
    if [[ ${words[1]} == jupyter ]]; then
        if (( CURRENT > 2 )) && [[ ${words[2]} == cmdop ]]; then
            local rest="${BUFFER#*cmdop}"
            local cut=$(( ${#BUFFER} - ${#rest} - 13 ))  # 13: the length of jupyter-cmdop
            _jupyter_cmdop_ask "jupyter-cmdop$rest" "$(( CURSOR - cut ))"
        elif (( CURRENT == 2 )); then
            compadd -- ${${(M)${(k)commands}:#jupyter-*}#jupyter-}
        else
            _default
        fi
        return
    fi
    _jupyter_cmdop_ask "$BUFFER" "$CURSOR"
}

if [[ $zsh_eval_context == *func ]]; then
    _jupyter_cmdop "$@"
else
    compdef _jupyter_cmdop jupyter-cmdop jupyter
fi
"""

_FISH = r"""# completion of jupyter-cmdop and jupyter cmdop for fish
function __jupyter_cmdop_ask
    set -lx _ARGCOMPLETE 1
    set -lx _ARGCOMPLETE_DFS \t
    set -lx _ARGCOMPLETE_IFS \n
    set -lx _ARGCOMPLETE_SUPPRESS_SPACE 1
    set -lx _ARGCOMPLETE_SHELL fish
    set -lx COMP_LINE (commandline -cp | string replace -r '^\s*jupyter\s+cmdop(?=\s)' jupyter-cmdop)
    set -lx COMP_POINT (string length -- "$COMP_LINE")
    set -lx COMP_TYPE
    jupyter-cmdop 8>&1 9>&2 1>/dev/null 2>&1
end
complete --command jupyter-cmdop -f -a '(__jupyter_cmdop_ask)'
complete --command jupyter -n '__fish_seen_subcommand_from cmdop' -f -a '(__jupyter_cmdop_ask)'
complete --command jupyter -n 'not __fish_seen_subcommand_from cmdop' -a cmdop -d 'sessions for people and agents'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(args: argparse.Namespace) -> int:
    print_text(SCRIPTS[args.shell])
    return exits.DONE
