#compdef wedctl
# zsh completion for wedctl: source <(wedctl completion zsh), after compinit

_wedctl() {
	local line word
	local -a open_words closed_words open_texts closed_texts
	for line in "${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		[[ -n $line ]] || continue
		word=${line%%$'\t'*}
		if [[ $line == *$'\t'* ]]; then
			line="$word -- ${line#*$'\t'}"
		fi
		if [[ $word == *= ]]; then
			open_words+=("$word") open_texts+=("$line")
		else
			closed_words+=("$word") closed_texts+=("$line")
		fi
	done
	if ((${#open_words} + ${#closed_words} == 0)); then
		_files
		return
	fi
	((${#open_words} == 0)) || compadd -l -S '' -d open_texts -a open_words
	((${#closed_words} == 0)) || compadd -l -d closed_texts -a closed_words
}

if [[ $funcstack[1] == _wedctl ]]; then
	_wedctl "$@"
else
	compdef _wedctl wedctl
fi
