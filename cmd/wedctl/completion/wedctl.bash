# bash completion for wedctl: source <(wedctl completion bash)

_wedctl() {
	local word line words=() joining= i
	# bash takes --flow=travel for three words
	for ((i = 1; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $word == = ]] && ((${#words[@]} > 0)); then
			words[-1]+==
			joining=1
		elif [[ $joining ]]; then
			words[-1]+=$word
			joining=
		else
			words+=("$word")
		fi
	done
	local prefix=
	if [[ $joining || ${words[-1]} != "${COMP_WORDS[COMP_CWORD]}" ]]; then
		prefix=${words[-1]%"${word#=}"}
	fi
	COMPREPLY=()
	while IFS= read -r line; do
		word=${line%%$'\t'*}
		word=${word#"$prefix"}
		if [[ $word == *= ]]; then
			compopt -o nospace 2>/dev/null
			COMPREPLY+=("$(printf %q "${word%=}")=")
		else
			COMPREPLY+=("$(printf %q "$word")")
		fi
	done < <("$1" __complete -- "${words[@]}" 2>/dev/null)
}

complete -o bashdefault -o default -F _wedctl wedctl
