# Calls to beaneater (Ruby), which knows TCP only: arguments are `tcp HOST PORT`.
#
# It has no reserve by id.

require "beaneater"
require "digest"
require "json"

ADDRESS = "#{ARGV[1]}:#{ARGV[2]}"

# Converts a value for JSON; long or binary values become length and digest.
def plain(value)
  case value
  when Beaneater::Job then { id: value.id, body: plain(value.body) }
  when Beaneater::Tube then value.name
  when Beaneater::StatStruct then plain(value.to_h)
  when Beaneater::Stats then value.keys.to_h { |key| [key, plain(value[key])] }
  when Hash then value.to_h { |key, each| [key.to_s, plain(each)] }
  when Array then value.map { |each| plain(each) }
  when String
    bytes = value.b
    return bytes.force_encoding("UTF-8") if bytes.bytesize <= 80 && bytes.ascii_only?
    "#{bytes.bytesize} bytes, sha256 #{Digest::SHA256.hexdigest(bytes)[0, 16]}"
  else value
  end
end

REFUSALS = [Beaneater::UnexpectedResponse, Beaneater::InvalidTubeName, Beaneater::JobNotReserved].freeze

# Calls `of.method(arguments)`; returns the line without printing it, and the plain result.
def quiet_call(name, of, method, *given)
  begin
    result = of.public_send(method, *given)
    answer = plain(result)
  rescue *REFUSALS => error
    result, answer = nil, { error.class.name => error.message }
  end
  texts = given.map { |value| JSON.generate(plain(value)) }
  ["#{name}.#{method}(#{texts.join(', ')}) -> #{JSON.generate(answer)}", result]
end

# Calls `of.method(arguments)`, prints the line and returns the plain result.
def call(name, of, method, *given)
  line, result = quiet_call(name, of, method, *given)
  puts line
  result
end

# A named client that prints its calls.
class Traced
  def initialize(name)
    @name, @client = name, Beaneater.new(ADDRESS)
  end

  attr_reader :client

  def tubes(method, *given) = call("#{@name}.tubes", @client.tubes, method, *given)
  def tube(tube, method, *given) = call("#{@name}.#{tube}", @client.tubes[tube], method, *given)
  def jobs(method, *given) = call("#{@name}.jobs", @client.jobs, method, *given)
  def put(body, **options) = tube("default", :put, body, options)&.fetch(:id, nil)
  def job(job, method, *given) = call("#{@name}.job(#{job.id})", job, method, *given)
  def stats = puts("#{@name}.stats -> #{JSON.generate(plain(@client.stats))}")

  # Reserves and deletes.
  def take(timeout = 0) = job(tubes(:reserve, timeout), :delete)
end

$stdout.sync = true
a, b = Traced.new("a"), Traced.new("b")

puts "# an empty daemon"
a.tubes(:all)
a.tubes(:used)
a.tubes(:watched)
a.jobs(:find, 1)
%i[ready delayed buried].each { |state| a.tube("default", :peek, state) }
a.tube("default", :kick, 10)
a.tubes(:reserve, 0)
a.tube("nosuch", :stats)
a.tube("nosuch", :pause, 1)
a.tube("default", :stats)

puts "# from put to delete"
id = a.put("hello")
a.jobs(:find, id)
a.tube("default", :peek, :ready)
job = a.tubes(:reserve)
a.job(job, :stats)
other = b.jobs(:find, id)
b.job(other, :delete)
b.job(other, :kick)
a.job(job, :ttr)
a.job(job, :delete)
a.job(job, :delete)
a.job(job, :exists?)

puts "# bodies"
[
  "x", "Grüße, 世界 🫘", "two\r\nlines\r\n", "DELETED\r\nRESERVED 1 1\r\n", "\0", "\r\n",
  (0..255).to_a.pack("C*"), "é" * 30_000, (0..254).to_a.pack("C*") * 257
].each do |body|
  a.jobs(:find, a.put(body.dup))
  a.take(1)
end
a.put("")
a.take(1)
a.put("x" * 65_536)
a.tubes(:used)

puts "# priority, then age"
{ "late" => 2000, "first" => 0, "second" => 5, "third" => 5, "last" => 2**32 - 1 }.each do |body, pri|
  a.put(body.dup, pri: pri)
end
a.tube("default", :stats)
5.times { a.take }

puts "# release"
a.put("again", pri: 10, ttr: 100)
job = a.tubes(:reserve)
a.job(job, :release, { pri: 7 })
a.job(job, :release, { pri: 7 })
job = a.tubes(:reserve, 0)
a.job(job, :stats)
a.job(job, :release, { pri: 8, delay: 1 })
a.job(job, :stats)
a.tube("default", :peek, :delayed)
a.tubes(:reserve, 0)
job = a.tubes(:reserve, 3)
a.job(job, :stats)
a.job(job, :delete)

puts "# bury and kick"
jobs = %w[one two three].map do |body|
  a.put(body.dup)
  a.tubes(:reserve, 0)
end
[1, 0, 2].each { |index| a.job(jobs[index], :bury, { pri: 3 }) }
a.job(jobs[0], :bury)
a.tube("default", :peek, :buried)
a.job(jobs[1], :stats)
a.jobs(:find, a.put("later", delay: 1000))
b.tube("default", :kick, 2)
b.job(jobs[2], :kick)
b.job(jobs[2], :kick)
b.tube("default", :kick, 10)
b.tube("default", :kick, 10)
a.job(jobs[2], :stats)
a.tube("default", :stats)
4.times { a.take }

puts "# touch, DEADLINE_SOON and the end of the time to run"
id = a.put("short", ttr: 2)
job = b.tubes(:reserve)
sleep 0.2
b.job(job, :touch)
a.job(a.client.jobs.find(id), :touch)
b.job(job, :stats)
b.tubes(:reserve, 5)
b.tubes(:reserve, 0)
b.tubes(:reserve)
sleep 1.3
b.tubes(:used) # 1.12 may notice the end only when the worker speaks.
sleep 0.1
b.job(job, :touch)
b.job(job, :release, { pri: 0, delay: 0 })
b.job(job, :stats)
job = a.tubes(:reserve, 3)
a.job(job, :stats)
a.job(job, :delete)

puts "# waiting"
a.tubes(:reserve, 1)
[[5], []].each do |timeout|
  waiting = Thread.new { quiet_call("b.tubes", b.client.tubes, :reserve, *timeout) }
  sleep 0.3
  a.tube("default", :stats)
  a.put("for b")
  line, job = waiting.value
  puts line
  b.job(job, :delete)
end
a.put("soon", delay: 1)
b.take(5)

puts "# tubes"
a.tube("mail", :put, "letter")
a.tubes(:used)
b.tubes(:watch, "mail")
b.tubes(:watch, "mail")
b.tubes(:watch, "a/b+c;d.e$f_g(h)-0")
b.tubes(:watched)
b.tubes(:all)
b.tubes(:ignore, "default")
b.tubes(:ignore, "nosuch")
b.take
b.tubes(:ignore, "mail")
b.tubes(:ignore, "a/b+c;d.e$f_g(h)-0")
b.tubes(:watch, "x" * 200)
b.tubes(:watch, "x" * 201)
b.tubes(:use, "white space")
b.tubes(:watch!, "default")
b.tubes(:watched)
a.tubes(:use, "default")
a.tubes(:all)

puts "# clearing a tube"
3.times { |count| a.put("clear #{count}") }
a.tube("default", :clear)
a.tube("default", :stats)

puts "# pause"
a.put("paused")
a.tube("default", :pause, 1000)
a.tube("default", :stats)
a.tubes(:reserve, 0)
a.tube("default", :peek, :ready)
a.tube("default", :pause, 1)
a.take(3)

puts "# a loop of its own"
%w[work bad stop].each { |body| a.put(body.dup) }
a.client.jobs.register("default") do |work|
  puts "# works on #{work.id} #{work.body}"
  raise "bad" if work.body == "bad"
  raise Beaneater::AbortProcessingError if work.body == "stop"
end
a.client.jobs.process!(reserve_timeout: 1)
a.tube("default", :peek, :buried)
a.tube("default", :kick, 10)
2.times { a.take }

puts "# a worker leaves"
a.put("kept")
gone = Traced.new("gone")
gone.tubes(:reserve)
gone.client.close
a.take(3)

puts "# what is left"
a.put("left")
b.tube("default", :stats)
b.tube("mail", :stats)
b.tubes(:all)
b.stats
puts "done"
