<?php
// Calls to pheanstalk (PHP), which knows TCP only: arguments are `tcp HOST PORT`.
//
// It has no reserve by id. PHP has no threads here, so no client puts while a worker waits.

require 'Pheanstalk/autoload.php';

use Pheanstalk\Contract\JobIdInterface;
use Pheanstalk\Exception\ConnectionException;
use Pheanstalk\Exception\SocketException;
use Pheanstalk\Job;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

/** Wraps a client: each call through it prints one line, `name.call(arguments) -> JSON`. */
class Traced
{
    private $name;
    private $client;

    public function __construct(string $name)
    {
        global $argv;
        $this->name = $name;
        $this->client = Pheanstalk::create($argv[2], (int) $argv[3]);
    }

    /** The library's exceptions become results; a lost connection ends the scenario. */
    public function __call(string $method, array $given)
    {
        $result = null;
        try {
            $result = $this->client->$method(...$given);
            $answer = plain($result);
        } catch (SocketException | ConnectionException $error) {
            throw $error;
        } catch (\Pheanstalk\Exception $error) {
            $answer = [get_class($error) => plain($error->getMessage())];
        }
        $texts = implode(', ', array_map(fn ($value) => json(plain($value)), $given));
        echo "$this->name.$method($texts) -> ", json($answer), "\n";
        return $result;
    }

    /** Reserves and deletes. */
    public function take(int $timeout = 0): void
    {
        $this->delete($this->reserveWithTimeout($timeout));
    }
}

function json($value): string
{
    return json_encode($value, JSON_THROW_ON_ERROR);
}

/** Converts a value for JSON; long or binary values become length and digest. */
function plain($value)
{
    if ($value instanceof Pheanstalk) {
        return 'itself';
    }
    if ($value instanceof Job) {
        return ['id' => $value->getId(), 'data' => plain($value->getData())];
    }
    if ($value instanceof JobIdInterface) {
        return $value->getId();
    }
    if ($value instanceof ArrayObject) {
        return $value->getArrayCopy();
    }
    if (is_string($value) && (strlen($value) > 80 || preg_match('/[\x80-\xff]/', $value))) {
        return strlen($value) . ' bytes, sha256 ' . substr(hash('sha256', $value), 0, 16);
    }
    return $value;
}

set_error_handler(function ($level, $message, $file, $line) {
    throw new ErrorException($message, 0, $level, $file, $line);
}, E_ALL & ~E_DEPRECATED);

$a = new Traced('a');
$b = new Traced('b');

echo "# an empty daemon\n";
$a->listTubes();
$a->listTubeUsed(true);
$a->listTubesWatched(true);
foreach (['peek', 'delete', 'kickJob', 'statsJob', 'touch'] as $verb) {
    $a->$verb(new JobId(1));
}
foreach (['peekReady', 'peekDelayed', 'peekBuried'] as $verb) {
    $a->$verb();
}
$a->kick(10);
$a->reserveWithTimeout(0);
$a->statsTube('nosuch');
$a->pauseTube('nosuch', 1);
$a->statsTube('default');

echo "# from put to delete\n";
$job = $a->put('hello');
$a->peek($job);
$a->peekReady();
$a->statsJob($job);
$a->reserve();
$a->statsJob($job);
$b->peek($job);
$b->delete($job);
$b->kickJob($job);
$a->delete($job);
$a->delete($job);

echo "# bodies\n";
$bytes = implode('', array_map('chr', range(0, 255)));
$bodies = ['', 'x', 'Grüße, 世界 🫘', "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "\0", "\r\n",
    str_repeat('é', 30000), $bytes, str_repeat($bytes, 255), str_repeat('x', 65535)];
foreach ($bodies as $body) {
    $a->peek($a->put($body));
    $a->take(1);
}
$a->put(str_repeat('x', 65536));
$a->listTubeUsed(true);

echo "# priority, then age\n";
foreach (['late' => 2000, 'first' => 0, 'second' => 5, 'third' => 5, 'last' => 2 ** 32 - 1] as $body => $priority) {
    $a->put($body, $priority);
}
$a->statsTube('default');
for ($i = 0; $i < 5; $i++) {
    $a->take();
}

echo "# release\n";
$a->put('again', 10, 0, 100);
$job = $a->reserve();
$a->release($job, 7);
$b->release($job);
$a->reserveWithTimeout(0);
$a->statsJob($job);
$a->release($job, 8, 1);
$a->statsJob($job);
$a->peekDelayed();
$a->reserveWithTimeout(0);
$a->reserveWithTimeout(3);
$a->statsJob($job);
$a->delete($job);

echo "# bury and kick\n";
$jobs = [];
foreach (['one', 'two', 'three'] as $body) {
    $a->put($body);
    $jobs[] = $a->reserveWithTimeout(0);
}
foreach ([1, 0, 2] as $index) {
    $a->bury($jobs[$index], 3);
}
$a->bury($jobs[0]);
$a->peekBuried();
$a->statsJob($jobs[1]);
$a->statsJob($a->put('later', 0, 1000));
$b->kick(2);
$b->kickJob($jobs[2]);
$b->kickJob($jobs[2]);
$b->kick(10);
$b->kick(10);
$a->statsJob($jobs[2]);
$a->statsTube('default');
for ($i = 0; $i < 4; $i++) {
    $a->take();
}

echo "# touch, DEADLINE_SOON and the end of the time to run\n";
$job = $a->put('short', 0, 0, 2);
$b->reserve();
usleep(200000);
$b->touch($job);
$a->touch($job);
$b->statsJob($job);
$b->reserveWithTimeout(5);
$b->reserveWithTimeout(0);
$b->reserve();
usleep(1300000);
$b->listTubeUsed(true); // 1.12 may notice the end only when the worker speaks.
usleep(100000);
$b->touch($job);
$b->release($job);
$b->statsJob($job);
$a->reserveWithTimeout(3);
$a->statsJob($job);
$a->delete($job);

echo "# waiting\n";
$a->reserveWithTimeout(1);
$a->put('soon', 0, 1);
$b->take(5);
$a->put('soon', 0, 1);
$b->delete($b->reserve());

echo "# tubes\n";
$a->useTube('mail');
$a->listTubeUsed(true);
$a->put('letter');
$b->watch('mail');
$b->watch('mail');
$b->watch('a/b+c;d.e$f_g(h)-0');
$b->listTubesWatched(true);
$b->listTubes();
$b->ignore('default');
$b->take();
$b->ignore('mail');
$b->ignore('a/b+c;d.e$f_g(h)-0');
$b->watch(str_repeat('x', 200));
$b->watch(str_repeat('x', 201));
$b->useTube('white space');
$b->watchOnly('default');
$b->listTubesWatched(true);
$a->useTube('default');
$a->listTubes();

echo "# pause\n";
$a->put('paused');
$a->pauseTube('default', 1000);
$a->statsTube('default');
$a->reserveWithTimeout(0);
$a->peekReady();
$a->pauseTube('default', 1);
$a->take(3);
$a->put('paused again');
$a->pauseTube('default', 1000);
$a->resumeTube('default');
$a->statsTube('default');
$a->take();

echo "# a worker leaves\n";
$job = $a->put('kept');
$gone = new Traced('gone');
$gone->reserve();
$a->statsJob($job);
$gone = null;
gc_collect_cycles();
$a->take(3);

echo "# what is left\n";
$a->put('left');
$b->statsTube('default');
$b->statsTube('mail');
$b->listTubes();
$b->stats();
echo "done\n";
