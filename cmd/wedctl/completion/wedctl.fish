# fish completion for wedctl: ~/.config/fish/completions/wedctl.fish

function __wedctl_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    $before[1] __complete -- $before[2..-1] "$current" 2>/dev/null
end

function __wedctl_knows_nothing
    test -z "$(__wedctl_complete)"
end

complete -c wedctl -f -a '(__wedctl_complete)'
complete -c wedctl -n __wedctl_knows_nothing -F
