# Does as stacks.py does, with Active Record.
require "active_record"

ActiveRecord::Base.establish_connection(
  adapter: "postgresql", host: ARGV[0], username: "app", database: "app", password: ENV.fetch("PGPASSWORD")
)
$stdout.sync = true
$stdin.each_line(chomp: true) do |line|
  errors = []
  begin
    ActiveRecord::Base.connection_pool.with_connection { |connection| connection.select_value("select 1") }
  rescue StandardError => error
    errors << error.message.split.join(" ")
    retry if errors.length < ENV.fetch("TRIES").to_i
  end
  puts [line, "Active Record", errors.length, errors.first].join("\t"), "#{line}\tend"
end
