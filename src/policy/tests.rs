//! The table of lines that may run and lines that may not, and what must hold for any line.

use super::*;
use proptest::prelude::*;

const ALLOWED: &[&str] = &[
    "jq", "awk", "grep", "sed", "sort", "uniq", "head", "tail", "wc", "cut", "tr", "cat", "echo",
    "date", "find", "ls", "python3", "python",
];
const FORBIDDEN: &[&str] = &["rm", "mv", "dd", "curl", "wget", "ssh", "sudo"];

fn policy() -> CommandPolicy {
    let owned = |words: &[&str]| {
        words
            .iter()
            .map(|word| word.to_string())
            .collect::<Vec<_>>()
    };
    CommandPolicy::new(owned(ALLOWED), owned(FORBIDDEN))
}

#[test]
fn these_lines_may_run() {
    for line in [
        "jq '.[] | select(.amount > 100)' data.json",
        "cat a.txt | grep -v foo | sort | uniq -c | head -n 5",
        "ls -la && echo done || echo failed",
        "echo 'rm -rf /'; echo \"rm -rf /\"; echo rm",
        "grep -r 'curl http' . ; echo sudo",
        "for f in *.csv; do wc -l \"$f\"; done",
        "while read -r line; do echo \"$line\" | tr a-z A-Z; done < in.txt",
        "if [ -f data.json ]; then jq . data.json; else echo none; fi",
        "if [[ $x == 1 && -n \"$y\" ]]; then echo yes; fi",
        "x=$(wc -l < f); echo \"lines: $x\"",
        "echo `date +%Y`",
        "echo $((1 + 2)) ; i=0; ((i++)); echo $i",
        "awk -F, '{ s += $2 } END { print s / NR }' f.csv",
        "awk '/foo|bar/ { print $1 }' f",
        "awk '$1 ~ /a|b/ || $2 > 3 { print \"a|b\" }' f",
        "sed -n '1,5p' f; sed 's/foo/bar/g' f; sed -e 's|a|b|' -e '/x/d' f; sed 's/e/x/' f",
        "sed '/^end$/q' f; sed -i.bak 's/one/else/' f",
        "find . -name '*.txt' -type f -exec grep -l foo {} +",
        "find . -name \"$pattern\" -exec wc -l {} \\;",
        "sort -t, -k2 -n f.csv > out.csv",
        "python3 -c 'import os; os.remove(\"x\")'",
        "python3 <<'EOF'\nimport subprocess\nprint('rm')\nEOF",
        "cat <<EOF\nvalue: $x\nEOF",
        "diff() { cat \"$1\"; }; diff a",
        "( cd sub && ls ) ; { echo a; echo b; }",
        "case $x in a) echo A;; *) ls;; esac",
        "LC_ALL=C sort f",
        "cat <(sort a) <(sort b)",
        "tail -f log & sleep=1; wait",
        "time ls",
        "! grep -q foo f",
        "printf '%s\\n' a b | cut -c1",
        "grep \"it's $HOME\" f",
        "echo \"${x:-default} ${#x} ${x%.txt}\"",
        "",
        "# only a comment",
        "echo '( (' \"( (\" ; cat <<'E'\n( (\nE",
        "sed -i.else 's/a/b/' f; sed -n -f f.sed f; sed -E 's/e/f/' f; sed --quiet -e 's/a/b/' f",
        "a[0]=1; echo \"${a[0]}\" ; m['k']=v",
    ] {
        assert_eq!(policy().check(line), Ok(()), "{line}");
    }
}

#[test]
fn these_lines_may_not_run() {
    for (line, word) in [
        ("rm -rf /workspace/*", Some("rm")),
        ("ls; rm x", Some("rm")),
        ("ls && rm x", Some("rm")),
        ("ls || rm x", Some("rm")),
        ("ls & rm x", Some("rm")),
        ("ls\nrm x", Some("rm")),
        ("ls | rm x", Some("rm")),
        ("(rm x)", Some("rm")),
        ("{ rm x; }", Some("rm")),
        ("echo $(rm x)", Some("rm")),
        ("echo \"$(rm x)\"", Some("rm")),
        ("echo `rm x`", Some("rm")),
        ("echo \"`rm x`\"", Some("rm")),
        ("echo $(echo $(rm x))", Some("rm")),
        ("cat <(rm x)", Some("rm")),
        ("ls > >(rm x)", Some("rm")),
        ("cat <<EOF\n$(rm x)\nEOF", Some("rm")),
        ("cat <<< $(rm x)", Some("rm")),
        ("if rm x; then ls; fi", Some("rm")),
        ("if ls; then rm x; fi", Some("rm")),
        ("while true; do rm x; done", Some("rm")),
        ("until rm x; do ls; done", Some("rm")),
        ("for f in $(rm x); do ls; done", Some("rm")),
        ("for ((i = $(rm x); i < 2; i++)); do ls; done", Some("rm")),
        ("case $(rm x) in *) ls;; esac", Some("rm")),
        ("case x in *) rm x;; esac", Some("rm")),
        ("f() { rm x; }; f", Some("rm")),
        ("rm() { ls; }; rm", Some("rm")),
        ("x=$(rm x)", Some("rm")),
        ("x=(a $(rm x))", Some("rm")),
        ("FOO=1 rm x", Some("rm")),
        ("'rm' x", Some("rm")),
        ("\"rm\" x", Some("rm")),
        ("r\\m x", Some("rm")),
        ("r''m x", Some("rm")),
        ("/bin/rm x", Some("rm")),
        ("/usr/bin/../bin/rm x", Some("rm")),
        ("! rm x", Some("rm")),
        ("time rm x", Some("rm")),
        ("coproc rm x", Some("rm")),
        ("find . -exec rm {} \\;", Some("rm")),
        ("find . -ex'ec' rm {} +", Some("rm")),
        ("find . -execdir 'rm' {} \\;", Some("rm")),
        ("find . -ok curl x \\;", Some("curl")),
        ("[[ -n $(rm x) ]]", Some("rm")),
        ("echo $(( $(rm x) ))", Some("rm")),
        ("ls 2> $(rm x)", Some("rm")),
        ("mv a b", Some("mv")),
        ("dd if=/dev/zero of=f", Some("dd")),
        ("curl http://x", Some("curl")),
        ("wget x", Some("wget")),
        ("ssh host", Some("ssh")),
        ("sudo ls", Some("sudo")),
        ("env rm x", None),
        ("ls | xargs rm", None),
        ("command rm x", None),
        ("exec rm x", None),
        ("eval 'rm x'", None),
        ("eval \"r\"\"m x\"", None),
        ("source script.sh", None),
        (". ./script.sh", None),
        ("bash -c 'rm x'", None),
        ("sh script", None),
        ("./script", None),
        ("/workspace/script", None),
        ("node -e 1", None),
        ("trap 'rm x' EXIT", None),
        ("alias ls=rm", None),
        ("hash -p /bin/rm ls", None),
        ("mapfile -C 'rm x' -c 1 a < f", None),
        ("builtin eval 'rm x'", None),
        ("enable -f ./x.so x", None),
        ("$x y", None),
        ("${x} y", None),
        ("$(echo rm) x", None),
        ("`echo rm` x", None),
        ("r$x x", None),
        ("\"$cmd\" x", None),
        ("{rm,x}", None),
        ("r* x", None),
        ("r? x", None),
        ("r[m] x", None),
        ("~/x", None),
        ("$'rm' x", None),
        ("$'\\x72m' x", None),
        ("PATH=. jq x", None),
        ("export PATH=.; jq x", None),
        ("read PATH < f; jq x", None),
        ("printf -v PATH .; jq x", None),
        ("for PATH in .; do jq x; done", None),
        ("declare -x LD_PRELOAD=./x.so; ls", None),
        ("BASH_ENV=x ls", None),
        ("BASH_CMDS[jq]=/bin/rm; jq x", None),
        ("PS4='$(rm x)'; set -x; ls", None),
        (": ${PATH:=.}", None),
        ("printf -v 'a[$(rm x)]' y", None),
        ("read 'a[$(rm x)]' < f", None),
        ("test -v 'a[$(rm x)]'", None),
        ("[[ -v 'a[$(rm x)]' ]]", None),
        ("let 'a[$(rm x)]'", None),
        ("unset 'a[$(rm x)]'", None),
        ("x='a[$(rm x)]'; echo $((x))", None),
        ("echo ${x:-$(rm x)}", None),
        ("echo \"${x:-$(rm x)}\"", None),
        ("echo ${!x}", None),
        ("echo ${x@P}", None),
        ("find . $x rm {} \\;", None),
        ("find . -exec $x {} \\;", None),
        ("awk 'BEGIN { system(\"rm x\") }'", None),
        ("awk '{ print | \"rm x\" }' f", None),
        ("awk '{ \"rm x\" | getline }' f", None),
        ("awk 'BEGIN { c = \"rm x\"; print 1 | c }'", None),
        ("sed 's/x/rm y/e' f", None),
        ("sed '1e rm x' f", None),
        ("sed -n -e 's/a/b/' -e 'e rm x' f", None),
        ("sed --expression='s/a/b/ge' f", None),
        ("sed -e'1e rm x' f", None),
        ("sed -ne'1e rm x' f", None),
        ("sed -E -e '1e rm x' f", None),
        ("sed --expr='1e rm x' f", None),
        ("sed --expr '1e rm x' f", None),
        ("awk 'BEGIN { f = \"system\"; @f(\"rm x\") }'", None),
        ("( # two subshells\n(rm x); (ls))", Some("rm")),
        ("( (ls) )", None),
        ("(\\\n(rm x); (ls) )", Some("rm")),
        ("sort --compress-program=rm f", None),
        ("echo 'unclosed", None),
        ("if true; then", None),
        ("ls )", None),
        ("ls <<", None),
        ("\u{0}", None),
    ] {
        let refused = policy().check(line).expect_err(line);
        assert_eq!(refused.word.as_deref(), word, "{line}: {}", refused.reason);
    }
}

#[test]
fn what_the_operator_adds_is_seen_through() {
    let mut policy = policy();
    policy
        .allowed
        .extend(["env", "xargs", "timeout"].map(str::to_owned));
    for line in [
        "env FOO=1 jq . f",
        "ls | xargs -n 1 wc -l",
        "timeout 5s grep x f",
    ] {
        assert_eq!(policy.check(line), Ok(()), "{line}");
    }
    for line in [
        "env FOO=1 rm f",
        "ls | xargs rm",
        "ls | xargs -n 1 rm",
        "timeout 5 rm f",
        "env $x f",
    ] {
        assert!(policy.check(line).is_err(), "{line}");
    }
}

#[test]
fn what_is_too_long_or_nested_too_deeply_is_refused() {
    assert!(policy().check(&"x".repeat(MAX_LINE_BYTES + 1)).is_err());
    let nested = |depth| format!("{}ls{}", "echo $(".repeat(depth), ")".repeat(depth));
    assert_eq!(policy().check(&nested(MAX_NESTING - 1)), Ok(()));
    assert!(policy().check(&nested(MAX_NESTING)).is_err());
}

#[test]
fn text_that_only_looks_like_a_program_may_be_long() {
    let code = "if (x[0] == {}): print([(1, 2)] * (3 + 4)) # for while (\n".repeat(200);
    assert_eq!(policy().check(&format!("python3 <<'E'\n{code}\nE")), Ok(()));
    assert_eq!(policy().check(&format!("python3 -c '{code}'")), Ok(()));
    let numbers = "[(1), {2}, \\\"x\\\"]\n".repeat(2_000);
    assert_eq!(policy().check(&format!("echo \"{numbers}\"")), Ok(()));
}

/// Ways to put a command into a line, `@` being the command.
const PLACES: &[&str] = &[
    "@",
    "ls; @",
    "ls && @",
    "ls | @",
    "( @ )",
    "{ @; }",
    "echo $( @ )",
    "echo \"$( @ )\"",
    "echo `@`",
    "if @; then ls; fi",
    "while @; do ls; done",
    "for x in a; do @; done",
    "f() { @; }; f",
    "x=$( @ ) ls",
    "cat < <( @ )",
    "cat <<E\n$( @ )\nE",
    "! @",
    "A=1 @",
    "@ &",
    "ls\n@",
    "case a in a) @;; esac",
    "[[ -n $( @ ) ]]",
    "echo $(( $( @ ) + 1 ))",
];

/// Ways to write a word that are that word to bash.
fn disguises(word: &str) -> Vec<String> {
    let (first, rest) = word.split_at(1);
    vec![
        word.to_owned(),
        format!("'{word}'"),
        format!("\"{word}\""),
        format!("\\{word}"),
        format!("{first}\\{rest}"),
        format!("{first}''{rest}"),
        format!("{first}\"\"{rest}"),
        format!("/bin/{word}"),
        format!("'{first}'{rest}"),
        format!("{first}\\\n{rest}"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_forbidden_word_starts_wherever_and_however_it_is_written(
        word in prop::sample::select(FORBIDDEN),
        disguise in 0_usize..10,
        places in prop::collection::vec(prop::sample::select(PLACES), 1..4),
        argument in "[a-z ]{0,8}",
    ) {
        let mut line = format!("{} {argument}", disguises(word)[disguise]);
        for place in places {
            // Backquotes within backquotes need escaping; that is another line.
            if place.contains('`') && line.contains('`') { continue }
            line = place.replace('@', &line);
        }
        prop_assert!(policy().check(&line).is_err(), "{}", line);
    }

    #[test]
    fn only_words_on_the_list_start(name in "[a-z]{1,8}") {
        let known = ALLOWED.contains(&name.as_str()) || BUILTINS.contains(&name.as_str());
        let keyword = ["if", "then", "fi", "do", "done", "for", "in", "case", "esac", "while", "until", "time", "elif", "else", "coproc", "select", "function"];
        prop_assume!(!keyword.contains(&name.as_str()));
        prop_assert_eq!(policy().check(&format!("{name} x")).is_ok(), known, "{}", name);
    }

    #[test]
    fn quoted_text_is_data(text in "[a-zA-Z0-9 .,;|&<>(){}!*?#~-]{0,40}") {
        let line = format!("echo '{text}'");
        prop_assert!(policy().check(&line).is_ok(), "{}", line);
    }
}
