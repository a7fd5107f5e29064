# Completions of beanstalkd for bash.

_beanstalkd() {
    local flags='-b --binlog -f --sync -F --no-sync -l --listen -p --port -u --user -z --max-job-size
        -s --binlog-size --max-memory --bury-after --wait-for-lock --exit-on-binlog-failure --busy-poll
        --check-binlog --ping -c -n -v --version -V --verbose -h --help'
    COMPREPLY=()
    case $3 in
        -b|--binlog|--check-binlog)
            local IFS=$'\n'
            compopt -o filenames
            COMPREPLY=($(compgen -d -- "$2")) ;;
        -u|--user) COMPREPLY=($(compgen -u -- "$2")) ;;
        -f|--sync|-l|--listen|-p|--port|-z|--max-job-size|-s|--binlog-size) ;;
        --max-memory|--bury-after|--exit-on-binlog-failure|--busy-poll) ;;
        *) COMPREPLY=($(compgen -W "$flags" -- "$2")) ;;
    esac
}
complete -F _beanstalkd beanstalkd
