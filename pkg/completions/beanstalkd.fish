# Completions of beanstalkd for fish.

complete -c beanstalkd -f
complete -c beanstalkd -s b -l binlog -d 'keep jobs in a binlog in this directory' -x -a '(__fish_complete_directories)'
complete -c beanstalkd -s f -l sync -d 'sync the binlog at most MS milliseconds after a write' -x
complete -c beanstalkd -s F -l no-sync -d 'never sync the binlog'
complete -c beanstalkd -s l -l listen -d 'listen on this address' -x
complete -c beanstalkd -s p -l port -d 'listen on this port or service' -x
complete -c beanstalkd -s u -l user -d 'become this user and its group' -x -a '(__fish_complete_users)'
complete -c beanstalkd -s z -l max-job-size -d 'the largest job body in bytes' -x
complete -c beanstalkd -s s -l binlog-size -d 'the size of a binlog file in bytes' -x
complete -c beanstalkd -l max-memory -d 'limit the bodies of jobs' -x
complete -c beanstalkd -l bury-after -d 'bury a job when it is lost for the N-th time' -x
complete -c beanstalkd -l wait-for-lock -d 'wait while another daemon has the directory of the binlog'
complete -c beanstalkd -l exit-on-binlog-failure -d 'exit with status 11 when the binlog has failed for SECONDS' -x
complete -c beanstalkd -l busy-poll -d 'poll for at most USEC microseconds before sleeping' -x
complete -c beanstalkd -l check-binlog -d 'print the segments' -x -a '(__fish_complete_directories)'
complete -c beanstalkd -l ping -d 'ask the daemon at -l and -p for a reply and exit'
complete -c beanstalkd -s c -d 'does nothing'
complete -c beanstalkd -s n -d 'does nothing'
complete -c beanstalkd -s v -l version -d 'print the version and exit'
complete -c beanstalkd -s V -l verbose -d 'log connections as well'
complete -c beanstalkd -s h -l help -d 'print this help and exit'
